//! What a declaration adds to a topology, and what contradicts it: purely.

use towpath_core::ports::broker::{Argument, Binding, BrokerError, BrokerResult, Exchange, Queue, Topology};

use super::routing::{DEAD_LETTER_EXCHANGE, DEAD_LETTER_KEY, SINGLE_RECEIVER, TIME_TO_LIVE};

/// How many bytes a name or key may take, as in AMQP.
pub(super) const LONGEST_NAME: usize = 255;

/// What must be added so that everything declared exists.
///
/// # Errors
/// `Mismatch` when something exists with other properties, `Missing` when a binding has an end that does not exist,
/// `Refused` when a name or an argument cannot be.
pub(super) fn additions(existing: &Topology, declared: &Topology) -> BrokerResult<Topology> {
    let mut new = Topology::default();
    for exchange in &declared.exchanges {
        check_name("exchange", &exchange.name)?;
        match find_exchange(existing, &exchange.name).or_else(|| find_exchange(&new, &exchange.name)) {
            None => new.exchanges.push(exchange.clone()),
            Some(found) if found.kind == exchange.kind => {}
            Some(found) => {
                return Err(mismatch(
                    "exchange",
                    &exchange.name,
                    "type",
                    exchange.kind.as_str(),
                    found.kind.as_str(),
                ));
            }
        }
    }
    for queue in &declared.queues {
        check_name("queue", &queue.name)?;
        queue.arguments.iter().try_for_each(|(name, value)| check_argument(&queue.name, name, value))?;
        match find_queue(existing, &queue.name).or_else(|| find_queue(&new, &queue.name)) {
            None => new.queues.push(queue.clone()),
            Some(found) => compare(queue, found)?,
        }
    }
    for binding in &declared.bindings {
        check_key(&binding.routing_key)?;
        let missing = |what, name: &str| BrokerError::Missing { what, name: name.to_owned() };
        find_exchange(existing, &binding.exchange)
            .or_else(|| find_exchange(&new, &binding.exchange))
            .ok_or_else(|| missing("exchange", &binding.exchange))?;
        find_queue(existing, &binding.queue)
            .or_else(|| find_queue(&new, &binding.queue))
            .ok_or_else(|| missing("queue", &binding.queue))?;
        let known = |known: &Binding| known == binding;
        if !existing.bindings.iter().any(known) && !new.bindings.iter().any(known) {
            new.bindings.push(binding.clone());
        }
    }
    Ok(new)
}

/// Whether nothing is to be added.
pub(super) fn is_nothing(additions: &Topology) -> bool {
    additions.exchanges.is_empty() && additions.queues.is_empty() && additions.bindings.is_empty()
}

fn find_exchange<'t>(topology: &'t Topology, name: &str) -> Option<&'t Exchange> {
    topology.exchanges.iter().find(|exchange| exchange.name == name)
}

fn find_queue<'t>(topology: &'t Topology, name: &str) -> Option<&'t Queue> {
    topology.queues.iter().find(|queue| queue.name == name)
}

fn compare(declared: &Queue, found: &Queue) -> BrokerResult<()> {
    let value = |queue: &Queue, name: &str| {
        queue.arguments.iter().find(|(argument, _)| argument == name).map(|(_, value)| value.clone())
    };
    let names = declared.arguments.iter().chain(&found.arguments).map(|(name, _)| name);
    for name in names {
        let (received, current) = (value(declared, name), value(found, name));
        if received != current {
            let shown =
                |value: Option<Argument>| value.map_or_else(|| "none".to_owned(), |value| value.to_string());
            return Err(mismatch("queue", &declared.name, name, &shown(received), &shown(current)));
        }
    }
    Ok(())
}

fn mismatch(what: &'static str, name: &str, argument: &str, received: &str, current: &str) -> BrokerError {
    BrokerError::Mismatch {
        what,
        name: name.to_owned(),
        difference: format!("{argument}: received '{received}' but current is '{current}'"),
    }
}

fn refused(reason: String) -> BrokerError {
    BrokerError::Refused { operation: "declaring the topology", source: reason.into() }
}

fn check_name(what: &str, name: &str) -> BrokerResult<()> {
    let flaw = if name.is_empty() {
        "it is empty"
    } else if name.trim() != name {
        "it begins or ends with a space"
    } else {
        return check_text(name).map_err(|flaw| refused(format!("{what} {name:.40?}: {flaw}")));
    };
    Err(refused(format!("{what} {name:.40?}: {flaw}")))
}

fn check_key(key: &str) -> BrokerResult<()> {
    let checked = if key.trim() == key { check_text(key) } else { Err("it begins or ends with a space") };
    checked.map_err(|flaw| refused(format!("binding key {key:.40?}: {flaw}")))
}

fn check_text(text: &str) -> Result<(), &'static str> {
    if text.len() > LONGEST_NAME {
        Err("it takes more than 255 bytes")
    } else if text.chars().any(char::is_control) {
        Err("it has control characters")
    } else {
        Ok(())
    }
}

/// Arguments that mean something here must be of their type; others are kept and mean nothing.
fn check_argument(queue: &str, name: &str, value: &Argument) -> BrokerResult<()> {
    let expected = match (name, value) {
        (TIME_TO_LIVE, Argument::Number(millis)) if *millis >= 0 => return Ok(()),
        (TIME_TO_LIVE, _) => "a number of milliseconds",
        (DEAD_LETTER_EXCHANGE | DEAD_LETTER_KEY, Argument::Text(_)) => return Ok(()),
        (DEAD_LETTER_EXCHANGE | DEAD_LETTER_KEY, _) => "a text",
        (SINGLE_RECEIVER, Argument::Switch(_)) => return Ok(()),
        (SINGLE_RECEIVER, _) => "true or false",
        _ => return Ok(()),
    };
    Err(refused(format!("queue {queue}: {name} must be {expected}, not {value}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_core::ports::broker::ExchangeKind;
    use towpath_core::retry::Coded as _;

    fn topology() -> Topology {
        Topology {
            exchanges: vec![Exchange { name: "e".into(), kind: ExchangeKind::Topic }],
            queues: vec![Queue {
                name: "q".into(),
                arguments: vec![
                    (TIME_TO_LIVE.into(), Argument::Number(5)),
                    (SINGLE_RECEIVER.into(), Argument::Switch(true)),
                ],
            }],
            bindings: vec![Binding { queue: "q".into(), exchange: "e".into(), routing_key: "#".into() }],
        }
    }

    #[test]
    fn only_what_is_missing_is_added() {
        let everything = additions(&Topology::default(), &topology()).unwrap();
        assert_eq!(everything, topology());
        assert!(is_nothing(&additions(&topology(), &topology()).unwrap()));
        let mut twice = topology();
        twice.queues.extend(topology().queues);
        twice.bindings.extend(topology().bindings);
        assert_eq!(additions(&Topology::default(), &twice).unwrap(), topology());
        // The order of arguments means nothing.
        twice.queues[0].arguments.reverse();
        assert!(is_nothing(&additions(&topology(), &twice).unwrap()));
    }

    #[test]
    fn an_argument_that_is_there_only_before_or_only_now_is_a_mismatch() {
        let mut fewer = topology();
        fewer.queues[0].arguments.pop();
        for (existing, declared) in [(topology(), fewer.clone()), (fewer, topology())] {
            let error = additions(&existing, &declared).unwrap_err();
            assert_eq!(error.code(), "topology-mismatch");
            assert!(error.to_string().contains(SINGLE_RECEIVER), "{error}");
        }
    }

    #[test]
    fn names_and_arguments_that_cannot_be_are_refused() {
        for name in ["", " q", "q ", "q\0", &"q".repeat(256)] {
            let queue = Queue { name: name.to_owned(), arguments: Vec::new() };
            let declared = Topology { queues: vec![queue], ..Topology::default() };
            assert_eq!(
                additions(&Topology::default(), &declared).unwrap_err().code(),
                "broker-refused",
                "{name:?}"
            );
        }
        for (name, value) in [
            (TIME_TO_LIVE, Argument::Number(-1)),
            (TIME_TO_LIVE, Argument::Text("5".into())),
            (DEAD_LETTER_EXCHANGE, Argument::Number(5)),
            (SINGLE_RECEIVER, Argument::Text("true".into())),
        ] {
            let queue = Queue { name: "q".into(), arguments: vec![(name.into(), value)] };
            let declared = Topology { queues: vec![queue], ..Topology::default() };
            assert_eq!(additions(&Topology::default(), &declared).unwrap_err().code(), "broker-refused");
        }
    }
}
