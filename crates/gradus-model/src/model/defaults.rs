//! Defaults of keys in `config.json` that several families share.

pub(super) fn yes() -> bool {
    true
}
pub(super) fn one() -> usize {
    1
}
pub(super) fn tenth() -> f32 {
    0.1
}
/// Standard deviation of newly initialized weights.
pub(super) fn deviation() -> f32 {
    0.02
}
pub(super) fn gelu() -> String {
    "gelu".into()
}
