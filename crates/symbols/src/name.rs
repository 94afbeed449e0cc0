//! The names of a symbol in the source.

use cpp_demangle::DemangleOptions;

/// Suffixes that compilers append to the name of a part or a variant of a function. The version of
/// a library's function begins with `@`.
const SUFFIXES: [&str; 9] =
    [".cold", ".part.", ".constprop.", ".isra.", ".lto_priv.", ".llvm.", ".localalias", ".warm", "@"];

/// Suffixes of variants that a compiler makes of one function; of those with other suffixes, each
/// is a function of its own.
const VARIANT_SUFFIXES: [&str; 5] = [".part.", ".constprop.", ".isra.", ".localalias", "@"];

/// Suffixes of parts that a compiler places elsewhere, perhaps with a number behind them.
const PART_SUFFIXES: [&str; 2] = [".cold", ".warm"];

/// Returns the symbol without the suffixes of the compiler.
fn without_suffixes(symbol: &str) -> &str {
    cut(symbol, &SUFFIXES)
}

/// Returns the symbol of the function that a compiler has made this variant of.
pub(crate) fn without_variant(symbol: &str) -> &str {
    cut(symbol, &VARIANT_SUFFIXES)
}

fn cut<'a>(symbol: &'a str, suffixes: &[&str]) -> &'a str {
    let places = suffixes.iter().filter_map(|suffix| symbol.find(suffix));
    // A name that is nothing but a suffix is a name.
    places.filter(|&place| place > 0).min().map_or(symbol, |place| &symbol[..place])
}

/// Returns the symbol of the function that the symbol names a part of: `sort` for `sort.cold` and
/// `sort.cold.1`.
pub(crate) fn whole_symbol(symbol: &str) -> Option<&str> {
    PART_SUFFIXES.iter().find_map(|suffix| {
        let (whole, number) = symbol.rsplit_once(suffix)?;
        let is_number = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit());
        let is_part = number.is_empty() || number.strip_prefix('.').is_some_and(is_number);
        (is_part && !whole.is_empty()).then_some(whole)
    })
}

/// Returns all names of a symbol: as it is, without suffixes, and as in C++ or Rust source, with
/// and without parameters.
#[must_use]
pub fn names(symbol: &str) -> Vec<String> {
    let base = without_suffixes(symbol);
    let mut names = vec![symbol.to_owned()];
    let mut add = |name: String| {
        if !names.contains(&name) {
            names.push(name);
        }
    };
    add(base.to_owned());
    if let Some((full, short)) = demangled(base) {
        add(full);
        add(short);
    }
    names
}

/// Returns the shortest name that a person would use.
#[must_use]
pub fn plain_name(symbol: &str) -> String {
    let base = without_suffixes(symbol);
    demangled(base).map_or_else(|| base.to_owned(), |(_, short)| short)
}

/// Returns the name in the source, with parameters if the symbol has them.
pub(crate) fn full_name(symbol: &str) -> String {
    let base = without_suffixes(symbol);
    demangled(base).map_or_else(|| base.to_owned(), |(full, _)| full)
}

/// Demangles a name, with and without its parameters (or its hash).
fn demangled(symbol: &str) -> Option<(String, String)> {
    if let Ok(name) = rustc_demangle::try_demangle(symbol) {
        return Some((name.to_string(), format!("{name:#}")));
    }
    if !symbol.starts_with("_Z") {
        return None;
    }
    let parsed = cpp_demangle::Symbol::new(symbol).ok()?;
    let options = DemangleOptions::new();
    let full = parsed.demangle_with_options(&options).ok()?;
    let short = parsed.demangle_with_options(&options.no_params().no_return_type()).ok()?;
    Some((full, short))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(symbol: &str, expected: &[&str]) {
        assert_eq!(names(symbol), expected, "{symbol}");
    }

    #[test]
    fn names_of_symbols() {
        check("main", &["main"]);
        check("sort.part.0", &["sort.part.0", "sort"]);
        check("sort.constprop.0.cold", &["sort.constprop.0.cold", "sort"]);
        check(".cold", &[".cold"]);
        check("_ZN2ns1fEi", &["_ZN2ns1fEi", "ns::f(int)", "ns::f"]);
        check("_ZN2ns1fEi.cold", &["_ZN2ns1fEi.cold", "_ZN2ns1fEi", "ns::f(int)", "ns::f"]);
        check("_Z", &["_Z"]);
        check("memcpy@GLIBC_2.2.5", &["memcpy@GLIBC_2.2.5", "memcpy"]);
        check(
            "_ZN4core3fmt5write17h0123456789abcdefE",
            &["_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write::h0123456789abcdef", "core::fmt::write"],
        );
    }

    #[test]
    fn parts_have_the_symbol_of_their_function() {
        let wholes = ["sort.cold", "sort.cold.1", "sort.part.0.cold", "sort.warm"].map(whole_symbol);
        assert_eq!(wholes, [Some("sort"), Some("sort"), Some("sort.part.0"), Some("sort")]);
        let wholes = ["sort", "sort.part.0", ".cold", "sort.colder", "sort.cold.x"].map(whole_symbol);
        assert_eq!(wholes, [None; 5]);
    }

    #[test]
    fn variants_have_the_symbol_of_their_function() {
        let variants = ["sort.part.0", "sort.constprop.0.isra.1", "sort.lto_priv.1.part.0", "f@V1"];
        assert_eq!(variants.map(without_variant), ["sort", "sort", "sort.lto_priv.1", "f"]);
    }

    #[test]
    fn plain_names() {
        assert_eq!(plain_name("_ZNK3Foo3getERKSs.part.1"), "Foo::get");
        assert_eq!(plain_name("qsort_r"), "qsort_r");
        assert_eq!(plain_name("_RNvNtCs1234_7mycrate3foo3bar"), "mycrate::foo::bar");
    }
}
