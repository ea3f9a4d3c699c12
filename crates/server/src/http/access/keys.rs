//! API keys: 256 random bits, of which only a hash is kept.
//!
//! A fast hash is right here. Slow ones (argon2, bcrypt) exist because passwords can be guessed; 256 random bits cannot,
//! however fast each guess is, and a slow hash on every request would be a way to wear the server out.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use towpath::ids::ActorId;

use super::{Caller, Role};

/// How a key begins: scanners for leaked secrets find it, and it is told from a token.
const PREFIX: &str = "tpk_";

/// How a written hash begins.
const HASH_PREFIX: &str = "sha256:";

/// A key as it is configured.
#[derive(Clone)]
pub(crate) struct ApiKey {
    pub(crate) name: ActorId,
    pub(crate) role: Role,
    hash: [u8; 32],
}

/// A key that cannot be one.
#[derive(Debug, thiserror::Error)]
#[error("the access key {name:?} {what}")]
pub(crate) struct BadKey {
    name: String,
    what: String,
}

/// A key that was just made: the only moment at which it can be seen.
pub(crate) struct NewKey {
    /// To be sent.
    pub(crate) key: String,
    /// To be configured.
    pub(crate) hash: String,
}

impl NewKey {
    /// Makes one from the machine's randomness.
    pub(crate) fn make() -> Result<Self, getrandom::Error> {
        let mut bits = [0_u8; 32];
        getrandom::fill(&mut bits)?;
        let key = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bits));
        let hash = format!("{HASH_PREFIX}{}", hex(&hash_of(&key)));
        Ok(Self { key, hash })
    }
}

impl ApiKey {
    /// Checks what was configured.
    pub(crate) fn new(name: &str, role: Role, hash: &str) -> Result<Self, BadKey> {
        let bad = |what: &str| BadKey { name: name.to_owned(), what: what.to_owned() };
        // A colon tells the subjects of tokens from the names of keys.
        if name.contains(':') {
            return Err(bad("has a colon in its name; choose a name without one"));
        }
        let actor = ActorId::new(name).map_err(|error| bad(&format!("has no usable name: {error}")))?;
        let wrong = || {
            bad(
                "has no hash of the form sha256:<64 hex digits>; `towpath keys new` makes a key with its hash",
            )
        };
        let digits = hash.strip_prefix(HASH_PREFIX).ok_or_else(wrong)?;
        let hash = unhex(digits).ok_or_else(wrong)?;
        Ok(Self { name: actor, role, hash })
    }

    /// The hash as it is written.
    #[cfg(test)]
    fn written_hash(&self) -> String {
        format!("{HASH_PREFIX}{}", hex(&self.hash))
    }
}

/// Whether a text was meant to be a key.
pub(super) fn looks_like_one(sent: &str) -> bool {
    sent.starts_with(PREFIX)
}

/// Who sent this key. All are compared, each in constant time: how long it takes tells nothing.
pub(super) fn find(keys: &[ApiKey], sent: &str) -> Option<Caller> {
    if !looks_like_one(sent) {
        return None;
    }
    let hash = hash_of(sent);
    let mut found = None;
    for key in keys {
        if bool::from(key.hash.ct_eq(&hash)) {
            found = Some(Caller { name: key.name.clone(), role: key.role, until: None });
        }
    }
    found
}

fn hash_of(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// Bytes as lower-case hex digits.
pub(in crate::http) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(digits: &str) -> Option<[u8; 32]> {
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    let mut bytes = [0_u8; 32];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_is_known_by_its_hash_and_no_other_is() {
        let (one, other) = (NewKey::make().unwrap(), NewKey::make().unwrap());
        assert_ne!(one.key, other.key);
        let keys = [ApiKey::new("ci", Role::Operator, &one.hash).ok().unwrap()];
        assert_eq!(keys[0].written_hash(), one.hash);
        let caller = find(&keys, &one.key).unwrap();
        assert_eq!((caller.name.as_str(), caller.role), ("ci", Role::Operator));
        assert!(find(&keys, &other.key).is_none());
        assert!(find(&keys, &one.hash).is_none(), "the hash is not a key");
        assert!(find(&keys, "").is_none());
        assert_eq!(URL_SAFE_NO_PAD.decode(one.key.strip_prefix(PREFIX).unwrap()).unwrap().len(), 32);
    }

    #[test]
    fn what_is_no_hash_is_refused_with_the_keys_name() {
        for hash in ["", "sha256:", "sha256:zz", &"0".repeat(64), &format!("sha256:{}", "é".repeat(32))] {
            let error = ApiKey::new("ci", Role::Viewer, hash).err().unwrap().to_string();
            assert!(error.contains("\"ci\"") && error.contains("towpath keys new"), "{error}");
        }
        assert!(ApiKey::new("a:b", Role::Viewer, &format!("sha256:{}", "0".repeat(64))).is_err());
    }
}
