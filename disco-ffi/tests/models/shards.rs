pub(crate) fn tests() -> Vec<crate::Test> {
    Vec::new()
}
