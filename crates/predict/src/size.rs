//! Legal numbers of entries of predictors.

use std::fmt;

use thiserror::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    Gshare,
    Ras,
    Ibtb,
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gshare => "gshare predictor",
            Self::Ras => "return address stack",
            Self::Ibtb => "indirect branch target buffer",
        })
    }
}

/// Error: an illegal number of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a {structure} cannot have {entries} entries; {}", nearest(*.below, *.above))]
pub struct IllegalSize {
    pub structure: Structure,
    pub entries: usize,
    /// The nearest legal numbers of entries.
    pub below: Option<usize>,
    pub above: Option<usize>,
}

fn nearest(below: Option<usize>, above: Option<usize>) -> String {
    match (below, above) {
        (Some(below), Some(above)) => format!("{below} and {above} are possible"),
        (Some(only), None) | (None, Some(only)) => format!("{only} is possible"),
        (None, None) => "no number is possible".into(),
    }
}

/// Accepts 0 and powers of two from `least` to `most`.
pub(crate) fn power_of_two(
    structure: Structure,
    entries: usize,
    least: usize,
    most: usize,
) -> Result<usize, IllegalSize> {
    if entries == 0 || (entries.is_power_of_two() && (least..=most).contains(&entries)) {
        return Ok(entries);
    }
    let (below, above) = if entries < least {
        (Some(0), Some(least))
    } else if entries > most {
        (Some(most), None)
    } else {
        (Some(entries.next_power_of_two() / 2), Some(entries.next_power_of_two()))
    };
    Err(IllegalSize { structure, entries, below, above })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(entries: usize) -> (Option<usize>, Option<usize>) {
        let error = power_of_two(Structure::Ibtb, entries, 4, 64).unwrap_err();
        (error.below, error.above)
    }

    #[test]
    fn the_nearest_legal_sizes_are_named() {
        for legal in [0, 4, 8, 16, 32, 64] {
            assert_eq!(power_of_two(Structure::Ibtb, legal, 4, 64), Ok(legal));
        }
        assert_eq!(refused(1), (Some(0), Some(4)));
        assert_eq!(refused(6), (Some(4), Some(8)));
        assert_eq!(refused(63), (Some(32), Some(64)));
        assert_eq!(refused(65), (Some(64), None));
        let error = power_of_two(Structure::Gshare, 100, 2, 1 << 20).unwrap_err();
        assert_eq!(error.to_string(), "a gshare predictor cannot have 100 entries; 64 and 128 are possible");
    }
}
