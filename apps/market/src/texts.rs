//! The frozen texts (O10). They are part of the contract, to the letter.

/// A message was handled before.
pub const ALREADY_HANDLED: &str = "事件已处理，忽略重复消息";

/// A message is of a type that its queue does not take.
pub const UNSUPPORTED_TYPE: &str = "事件类型不支持";

/// A message could not be published.
pub const NOT_SENT: &str = "消息发送失败";

/// A message could not be handled.
pub const NOT_HANDLED: &str = "消息消费失败";
