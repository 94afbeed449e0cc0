//! Filters and their decoders: TRaptor for control flow ([`traptor`]) and CFiat for the values of
//! loads ([`cfiat`]), after Myers 2014, chapter 3, and Tewar 2015, chapter 3.
//!
//! An encoder emits a message only for an event that its predictors or its cache do not know. The
//! decoder has the program, the messages, and the same predictors and caches. It reproduces all
//! events.
//!
//! Predictors and caches belong to one thread or to all threads; an encoder always belongs to one
//! thread. This crate knows nothing of traces, files, or the bits of a message.

pub mod cfiat;
pub mod traptor;
