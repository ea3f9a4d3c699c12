//! Servers that a case may stop, restart or start for itself.

/// Says no silently passed case: set by `cargo xtask ci`.
const NOTHING_LEFT_OUT: &str = "TOWPATH_TEST_NOTHING_LEFT_OUT";

/// The value of a variable that `cargo xtask test` sets for servers under its control. Without it a case is left out and says
/// so; in continuous integration nothing is left out.
///
/// # Panics
/// In continuous integration, when the variable is not set.
#[allow(clippy::print_stderr, reason = "whoever runs the case is told that it was left out")]
pub fn under_control(variable: &str) -> Option<String> {
    let value = std::env::var(variable).ok().filter(|value| !value.is_empty());
    if value.is_none() {
        assert!(
            std::env::var_os(NOTHING_LEFT_OUT).is_none(),
            "{variable} is not set, and nothing is left out here"
        );
        eprintln!("left out: {variable} is not set; `cargo xtask test` sets it");
    }
    value
}

/// Ends a case that needs a promise which the adapter does not make. Such cases are named where the suite is expanded
/// (`left out: …`), so that they are shown as ignored and not as passed.
///
/// # Panics
/// Always: whoever comes here is not named.
pub(crate) fn left_out(promise: &str) -> ! {
    panic!("the adapter does not promise `{promise}`: name this case among those that are left out")
}
