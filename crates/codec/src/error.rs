//! What can be wrong with a payload.

/// A payload could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("{0}")]
    Malformed(&'static str),
    #[error("codec {0} is unknown")]
    UnknownCodec(u8),
}
