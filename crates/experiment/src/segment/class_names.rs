//! Names of instruction classes on the command line and in results, and weights that are written
//! with them.

use segment::{Class, Policy};

/// One class, or several with a common name.
pub type Classes = &'static [Class];

/// The classes and groups of classes by their names on the command line and in JSON.
pub const CLASSES: [(&str, Classes); 13] = [
    ("syscall", &[Class::Syscall]),
    ("interrupt", &[Class::Interrupt]),
    ("return", &[Class::Return]),
    ("direct-call", &[Class::DirectCall]),
    ("indirect-call", &[Class::IndirectCall]),
    ("conditional", &Class::CONDITIONAL),
    ("forward-taken", &[Class::ForwardTaken]),
    ("forward-not-taken", &[Class::ForwardNotTaken]),
    ("backward-taken", &[Class::BackwardTaken]),
    ("backward-not-taken", &[Class::BackwardNotTaken]),
    ("direct-jump", &[Class::DirectJump]),
    ("indirect-conditional-jump", &[Class::IndirectConditionalJump]),
    ("indirect-jump", &[Class::IndirectJump]),
];

/// Returns the weights of a policy that differ from the default, as --weight takes them. The four
/// kinds of conditional jumps are one entry if their weights are equal.
pub fn unusual_weights(policy: &Policy) -> Vec<(&'static str, u32)> {
    let mut shown: Vec<Class> = Vec::new();
    let mut weights = Vec::new();
    for (name, classes) in CLASSES {
        let weight = policy.weight(classes[0]);
        let is_new = |class: &Class| !policy.has_usual_weight(*class) && !shown.contains(class);
        if classes.iter().all(|class| is_new(class) && policy.weight(*class) == weight) {
            weights.push((name, weight));
            shown.extend(classes);
        }
    }
    weights
}

/// Returns the same as text, as --weight takes it; empty if all are default.
pub fn weights_text(policy: &Policy) -> String {
    let weights = unusual_weights(policy).into_iter();
    weights.map(|(class, weight)| format!("{class}={weight}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusual_weights_are_listed() {
        let given = Policy::default();
        assert_eq!(unusual_weights(&given), []);
        assert_eq!(unusual_weights(&given.two_conditional_jumps()), [("conditional", 2)]);
        let mixed =
            given.two_conditional_jumps().with_weight(Class::BackwardTaken, 3).with_weight(Class::DirectJump, 1);
        let expected = [
            ("forward-taken", 2),
            ("forward-not-taken", 2),
            ("backward-taken", 3),
            ("backward-not-taken", 2),
            ("direct-jump", 1),
        ];
        assert_eq!(unusual_weights(&mixed), expected);
    }
}
