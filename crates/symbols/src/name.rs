//! The names of a symbol in the source.

use cpp_demangle::DemangleOptions;

/// Suffixes that compilers append to the name of a part or a variant of a function.
const SUFFIXES: [&str; 8] =
    [".cold", ".part.", ".constprop.", ".isra.", ".lto_priv.", ".llvm.", ".localalias", ".warm"];

/// Returns the symbol without the suffixes of the compiler.
fn without_suffixes(symbol: &str) -> &str {
    let places = SUFFIXES.iter().filter_map(|suffix| symbol.find(suffix));
    // A name that is nothing but a suffix is a name.
    places.filter(|&place| place > 0).min().map_or(symbol, |place| &symbol[..place])
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
        check(
            "_ZN4core3fmt5write17h0123456789abcdefE",
            &["_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write::h0123456789abcdef", "core::fmt::write"],
        );
    }

    #[test]
    fn plain_names() {
        assert_eq!(plain_name("_ZNK3Foo3getERKSs.part.1"), "Foo::get");
        assert_eq!(plain_name("qsort_r"), "qsort_r");
        assert_eq!(plain_name("_RNvNtCs1234_7mycrate3foo3bar"), "mycrate::foo::bar");
    }
}
