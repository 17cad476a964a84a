//! Encoder of protocol buffers, for the required field types. A message is the concatenation of its fields.
//!
//! <https://protobuf.dev/programming-guides/encoding/>. Empty strings are left out, as proto3 does.

/// A message under construction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a non-negative `int32`, `int64` or enum; 0 is left out.
    pub fn integer(mut self, field: u32, value: u64) -> Self {
        if value != 0 {
            self.key(field, 0);
            self.varint(value);
        }
        self
    }

    /// Appends a `double`, even if it is 0.
    pub fn double(mut self, field: u32, value: f64) -> Self {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Appends a `float`, even if it is 0.
    pub fn float(mut self, field: u32, value: f32) -> Self {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Appends a string.
    pub fn text(self, field: u32, text: &str) -> Self {
        if text.is_empty() { self } else { self.bytes(field, text.as_bytes()) }
    }

    /// Appends a nested message, even if it is empty.
    pub fn message(self, field: u32, message: Message) -> Self {
        self.bytes(field, &message.0)
    }

    /// Appends the messages of a repeated field.
    pub fn messages(self, field: u32, messages: impl IntoIterator<Item = Message>) -> Self {
        messages.into_iter().fold(self, |whole, message| whole.message(field, message))
    }

    /// Returns the encoded message.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn bytes(mut self, field: u32, bytes: &[u8]) -> Self {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn key(&mut self, field: u32, wire_type: u32) {
        self.varint(u64::from(field << 3 | wire_type));
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_specification() {
        assert_eq!(Message::new().integer(1, 150).into_bytes(), [0x08, 0x96, 0x01]);
        let testing = [0x12, 0x07, 0x74, 0x65, 0x73, 0x74, 0x69, 0x6e, 0x67];
        assert_eq!(Message::new().text(2, "testing").text(3, "").into_bytes(), testing);
        let inner = Message::new().integer(1, 150);
        assert_eq!(Message::new().message(3, inner).into_bytes(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
    }
}
