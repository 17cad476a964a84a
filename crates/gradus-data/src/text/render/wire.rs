//! Protocol between a renderer and its parent over pipes.
//!
//! A message is its length in bytes, followed by its parts, each with its own length. The parent sends the template first, then any
//! number of batches. It writes a whole message before it reads, and the child reads a whole message before it writes. So the two
//! never wait for each other with a full pipe.

use std::io::{Error, ErrorKind, Read, Result, Write};

/// Rendered text of one part, or the reason why there is none.
pub(super) type RenderResult = std::result::Result<String, String>;

/// Maximum size of one answer in bytes. The limits of rendering are far lower.
const ANSWER_BYTES: u64 = 1 << 32;

/// Writes one message of several parts.
pub(super) fn send(to: &mut impl Write, parts: &[&str]) -> Result<()> {
    let length: usize = parts.iter().map(|part| 8 + part.len()).sum();
    let mut bytes = Vec::with_capacity(8 + length);
    bytes.extend_from_slice(&(length as u64).to_le_bytes());
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    to.write_all(&bytes)?;
    to.flush()
}

/// Reads the parts of the next message. Returns `None` at the end of the input.
pub(super) fn receive(from: &mut impl Read) -> Result<Option<Vec<String>>> {
    let mut length = [0; 8];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u64::from_le_bytes(length);
    let mut bytes = Vec::new();
    from.take(length).read_to_end(&mut bytes)?;
    let (mut rest, mut parts) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let (head, after) = rest.split_at_checked(8).ok_or_else(cut_off)?;
        let length = u64::from_le_bytes(head.try_into().expect("eight bytes"));
        let length = usize::try_from(length).map_err(|_| cut_off())?;
        let (part, after) = after.split_at_checked(length).ok_or_else(cut_off)?;
        parts.push(String::from_utf8(part.to_vec()).map_err(Error::other)?);
        rest = after;
    }
    Ok(Some(parts))
}

/// Writes one answer.
pub(super) fn send_answer(to: &mut impl Write, answer: &RenderResult) -> Result<()> {
    let (Ok(text) | Err(text)) = answer;
    to.write_all(&[u8::from(answer.is_err())])?;
    to.write_all(&(text.len() as u64).to_le_bytes())?;
    to.write_all(text.as_bytes())
}

/// Reads the next answer.
pub(super) fn receive_answer(from: &mut impl Read) -> Result<RenderResult> {
    let mut head = [0; 9];
    from.read_exact(&mut head)?;
    let length = u64::from_le_bytes(head[1..].try_into().expect("eight bytes"));
    if length > ANSWER_BYTES {
        return Err(Error::other(format!("an answer of {length} bytes")));
    }
    let mut bytes = Vec::with_capacity(length.min(1 << 20) as usize);
    if from.take(length).read_to_end(&mut bytes)? as u64 != length {
        return Err(cut_off());
    }
    let text = String::from_utf8(bytes).map_err(Error::other)?;
    Ok(if head[0] == 0 { Ok(text) } else { Err(text) })
}

fn cut_off() -> Error {
    Error::from(ErrorKind::UnexpectedEof)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_answers_arrive_as_they_were_sent() {
        let mut bytes = Vec::new();
        send(&mut bytes, &["a", "", "Grüße\n"]).unwrap();
        send(&mut bytes, &[]).unwrap();
        let mut from = &bytes[..];
        assert_eq!(receive(&mut from).unwrap().unwrap(), ["a", "", "Grüße\n"]);
        assert_eq!(receive(&mut from).unwrap().unwrap(), [""; 0]);
        assert_eq!(receive(&mut from).unwrap(), None);
        assert!(receive(&mut &bytes[..12]).is_err(), "a message that is cut off is an error");

        let mut bytes = Vec::new();
        send_answer(&mut bytes, &Ok("text".into())).unwrap();
        send_answer(&mut bytes, &Err("no".into())).unwrap();
        let mut from = &bytes[..];
        assert_eq!(receive_answer(&mut from).unwrap(), Ok("text".to_owned()));
        assert_eq!(receive_answer(&mut from).unwrap(), Err("no".to_owned()));
        assert!(receive_answer(&mut &bytes[..10]).is_err(), "an answer that is cut off is an error");
    }
}
