//! Which events have to be told, if whoever follows has the program and the same predictors and caches: TRaptor for control flow,
//! CFiat for the values of loads (Myers 2014, chapter 3; Tewar 2015, chapter 3). And the mirror image of each, which
//! takes what was told and gives all events back.
//!
//! Predictors and caches belong to one thread or to all; counters always belong to one. Knows nothing of the bits of a message.

pub mod cfiat;
pub mod traptor;
