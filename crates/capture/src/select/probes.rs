//! Allocation routines by their symbols.

use wire::routine;

/// What may follow the symbol of `operator new`: no exceptions, an alignment.
const NEW_VARIANTS: [&str; 4] = ["", "RKSt9nothrow_t", "St11align_val_t", "St11align_val_tRKSt9nothrow_t"];
/// What may follow the symbol of `operator delete`: beside those, a size.
const DELETE_VARIANTS: [&str; 6] =
    ["", "RKSt9nothrow_t", "St11align_val_t", "St11align_val_tRKSt9nothrow_t", "m", "mSt11align_val_t"];

/// Returns the `wire::routine` that a symbol names.
pub fn routine_of(symbol: &str) -> Option<u8> {
    let plain = match symbol {
        "malloc" => routine::MALLOC,
        "calloc" => routine::CALLOC,
        "realloc" => routine::REALLOC,
        "free" | "cfree" | "free_sized" | "free_aligned_sized" => routine::FREE,
        "aligned_alloc" => routine::ALIGNED_ALLOC,
        "posix_memalign" => routine::POSIX_MEMALIGN,
        "memalign" => routine::MEMALIGN,
        "valloc" | "pvalloc" => routine::VALLOC,
        "reallocarray" => routine::REALLOCARRAY,
        _ => return operator_of(symbol),
    };
    Some(plain)
}

fn operator_of(symbol: &str) -> Option<u8> {
    let is_variant =
        |prefix, variants: &[&str]| symbol.strip_prefix(prefix).is_some_and(|rest| variants.contains(&rest));
    [
        ("_Znwm", &NEW_VARIANTS[..], routine::NEW),
        ("_Znam", &NEW_VARIANTS, routine::NEW_ARRAY),
        ("_ZdlPv", &DELETE_VARIANTS, routine::DELETE),
        ("_ZdaPv", &DELETE_VARIANTS, routine::DELETE_ARRAY),
    ]
    .into_iter()
    .find_map(|(prefix, variants, routine)| is_variant(prefix, variants).then_some(routine))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routines_by_symbol() {
        for (symbol, expected) in [
            ("malloc", routine::MALLOC),
            ("reallocarray", routine::REALLOCARRAY),
            ("_Znwm", routine::NEW),
            ("_ZnamSt11align_val_tRKSt9nothrow_t", routine::NEW_ARRAY),
            ("_ZdlPvm", routine::DELETE),
            ("_ZdaPvmSt11align_val_t", routine::DELETE_ARRAY),
        ] {
            assert_eq!(routine_of(symbol), Some(expected), "{symbol}");
        }
        for symbol in ["", "xmalloc", "malloc_usable_size", "_ZnwmPv", "_Znwmm", "_ZdlPvS_", "_ZN3FoonwEm"] {
            assert_eq!(routine_of(symbol), None, "{symbol}");
        }
    }
}
