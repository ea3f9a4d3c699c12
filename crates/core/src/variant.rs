//! Commands and events as they are stored: the name of a variant beside its content, by way of serde.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, EnumAccess, VariantAccess, Visitor};
use serde::{Deserializer, Serialize};

use crate::payload::{InvalidPayload, Payload};

/// Splits a value into the stored name of its variant and the variant's content. A variant without content has
/// the empty object as payload.
pub fn to_variant<T: Serialize>(value: &T) -> Result<(String, Payload), InvalidPayload> {
    let text = serde_json::to_string(value).map_err(InvalidPayload::NotWritable)?;
    if text.starts_with('"') {
        let name = serde_json::from_str(&text).map_err(InvalidPayload::NotWritable)?;
        return Ok((name, Payload::empty()));
    }
    let SingleEntry(name, payload) = serde_json::from_str(&text).map_err(InvalidPayload::NotWritable)?;
    Ok((name, Payload::from_text(payload)?))
}

/// Builds a value from the stored name of its variant and the variant's content.
pub fn from_variant<T: DeserializeOwned>(name: &str, payload: &Payload) -> Result<T, InvalidPayload> {
    T::deserialize(NamedContent { name, content: payload.as_text() })
        .map_err(|source| InvalidPayload::WrongShape { type_name: name.to_owned(), source })
}

/// `{"name": content}`, read without building a tree.
struct SingleEntry(String, String);

impl<'de> serde::Deserialize<'de> for SingleEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntryVisitor;
        impl<'de> Visitor<'de> for EntryVisitor {
            type Value = SingleEntry;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an enum variant written as an object with one key")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<SingleEntry, A::Error> {
                let Some((name, content)) = map.next_entry::<String, &serde_json::value::RawValue>()? else {
                    return Err(serde::de::Error::custom("the object is empty"));
                };
                if map.next_key::<String>()?.is_some() {
                    return Err(serde::de::Error::custom("the object has more than one key"));
                }
                Ok(SingleEntry(name, content.get().to_owned()))
            }
        }
        deserializer.deserialize_map(EntryVisitor)
    }
}

struct NamedContent<'a> {
    name: &'a str,
    content: &'a str,
}

impl<'de> Deserializer<'de> for NamedContent<'_> {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_enum(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, 'a> EnumAccess<'de> for NamedContent<'a> {
    type Error = serde_json::Error;
    type Variant = Content<'a>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Content<'a>), Self::Error> {
        let name: StrDeserializer<'_, serde_json::Error> =
            serde::de::IntoDeserializer::into_deserializer(self.name);
        Ok((seed.deserialize(name)?, Content(self.content)))
    }
}

/// The content of a variant, as JSON text.
struct Content<'a>(&'a str);

impl<'a> Content<'a> {
    /// Reads all of the text with `read`, and refuses what stands behind it.
    fn read_all<R>(
        &self,
        read: impl FnOnce(&mut serde_json::Deserializer<serde_json::de::StrRead<'a>>) -> serde_json::Result<R>,
    ) -> serde_json::Result<R> {
        let mut json = serde_json::Deserializer::from_str(self.0);
        let value = read(&mut json)?;
        json.end()?;
        Ok(value)
    }
}

/// Visitors of owned values never borrow, but their signature says they might: this one is only ever given
/// texts that outlive nothing, through `deserialize_*` methods that copy.
impl<'de> VariantAccess<'de> for Content<'_> {
    type Error = serde_json::Error;

    fn unit_variant(self) -> Result<(), serde_json::Error> {
        // A variant without fields: senders write {}, null or nothing in particular. Extra fields are ignored as
        // they are for variants with fields.
        self.read_all(|json| <serde::de::IgnoredAny as serde::Deserialize>::deserialize(json).map(|_| ()))
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_reader(self.0.as_bytes());
        let value = seed.deserialize(&mut reader)?;
        reader.end()?;
        Ok(value)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_reader(self.0.as_bytes());
        let value = reader.deserialize_tuple(len, visitor)?;
        reader.end()?;
        Ok(value)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_reader(self.0.as_bytes());
        let value = reader.deserialize_struct("", fields, visitor)?;
        reader.end()?;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Sample {
        #[serde(rename = "order.placed")]
        Placed { sku: String, count: u32 },
        #[serde(rename = "order.shipped")]
        Shipped,
        #[serde(rename = "order.noted")]
        Noted(String),
        #[serde(rename = "order.moved")]
        Moved(u8, u8),
        #[serde(rename = "order.priced")]
        Priced(Payload),
    }

    #[test]
    fn every_kind_of_variant_survives_the_round_trip() {
        for sample in [
            Sample::Placed { sku: "a\"b🦆\0".into(), count: 3 },
            Sample::Shipped,
            Sample::Noted("x".into()),
            Sample::Moved(1, 2),
            Sample::Priced(Payload::from_text(r#"{"amount":88.50}"#).unwrap()),
        ] {
            let (name, payload) = to_variant(&sample).unwrap();
            assert_eq!(from_variant::<Sample>(&name, &payload).unwrap(), sample);
        }
    }

    #[test]
    fn a_unit_variant_has_the_empty_object_as_payload() {
        let (name, payload) = to_variant(&Sample::Shipped).unwrap();
        assert_eq!((name.as_str(), payload.as_text()), ("order.shipped", "{}"));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_name() {
        let refused = |name: &str, payload: &str| {
            from_variant::<Sample>(name, &Payload::from_text(payload).unwrap()).unwrap_err().to_string()
        };
        assert_eq!(refused("order.placed", r#"{"sku":1}"#), "the payload does not fit order.placed");
        refused("order.placed", "{}");
        refused("order.unheard", "{}");
    }
}
