//! ZeroMQ's wire protocol (ZMTP 3.0, <https://rfc.zeromq.org/spec/23/>), as far as a DEALER over TCP needs it: no security, no
//! reconnection. A message is a list of frames.

use std::io::{self, Read, Write};

/// Maximum number of frames in a message, and of bytes in all of them.
const FRAMES_MAX: usize = 16;
const MESSAGE_BYTES: u64 = 64 << 20;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Size of the greeting that both sides send first.
const GREETING: usize = 64;

fn wrong(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

fn greeting() -> [u8; GREETING] {
    let mut bytes = [0; GREETING];
    // Signature, version, and security mechanism.
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

/// Encodes a property of a command.
fn property(name: &str, value: &str) -> Vec<u8> {
    let size = (value.len() as u32).to_be_bytes();
    [&[name.len() as u8][..], name.as_bytes(), &size, value.as_bytes()].concat()
}

/// Exchanges greetings as a socket of the type `own`, such as `DEALER`.
///
/// # Errors
/// Returns an error if the peer does not answer or uses another protocol.
pub fn greet(stream: &mut (impl Read + Write), own: &str) -> io::Result<()> {
    stream.write_all(&greeting())?;
    let mut theirs = [0; GREETING];
    stream.read_exact(&mut theirs)?;
    if (theirs[0], theirs[9] & 1) != (0xff, 1) {
        return Err(wrong("it does not use ZeroMQ's protocol"));
    }
    if theirs[10] < 3 {
        return Err(wrong(format!("it uses version {} of ZeroMQ's protocol, but 3 is needed", theirs[10])));
    }
    let mechanism = &theirs[12..32];
    if !mechanism.starts_with(b"NULL\0") {
        let named = String::from_utf8_lossy(mechanism);
        return Err(wrong(format!(
            "it requires the security mechanism {}, but only NULL is supported",
            named.trim_end_matches('\0')
        )));
    }
    let ready = [b"\x05READY".to_vec(), property("Socket-Type", own), property("Identity", "")].concat();
    write_frame(stream, COMMAND, &ready)?;
    stream.flush()?;
    let (flags, body) = read_frame(stream, MESSAGE_BYTES)?;
    match (flags & COMMAND != 0, command(&body)) {
        (true, Some("READY")) => Ok(()),
        (true, Some("ERROR")) => {
            let reason = body.get(7..).map(String::from_utf8_lossy).unwrap_or_default();
            Err(wrong(format!("it refused the connection: {reason}")))
        }
        _ => Err(wrong("it is not ready after the greeting")),
    }
}

/// Returns the name of a command.
fn command(body: &[u8]) -> Option<&str> {
    let (&size, rest) = body.split_first()?;
    std::str::from_utf8(rest.get(..usize::from(size))?).ok()
}

fn write_frame(stream: &mut impl Write, flags: u8, body: &[u8]) -> io::Result<()> {
    match u8::try_from(body.len()) {
        Ok(size) => stream.write_all(&[flags, size])?,
        Err(_) => {
            stream.write_all(&[flags | LONG])?;
            stream.write_all(&(body.len() as u64).to_be_bytes())?;
        }
    }
    stream.write_all(body)
}

fn read_frame(stream: &mut impl Read, room: u64) -> io::Result<(u8, Vec<u8>)> {
    let mut flags = [0];
    stream.read_exact(&mut flags)?;
    let flags = flags[0];
    let size = if flags & LONG == 0 {
        let mut size = [0];
        stream.read_exact(&mut size)?;
        u64::from(size[0])
    } else {
        let mut size = [0; 8];
        stream.read_exact(&mut size)?;
        u64::from_be_bytes(size)
    };
    if size > room {
        return Err(wrong(format!("a message has more than {MESSAGE_BYTES} bytes")));
    }
    // Memory is allocated as bytes arrive, not by the announced size.
    let mut body = Vec::new();
    stream.take(size).read_to_end(&mut body)?;
    if (body.len() as u64) < size {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((flags, body))
}

/// Sends a message.
///
/// # Errors
/// Returns an error if the connection is broken.
pub fn send(stream: &mut impl Write, frames: &[&[u8]]) -> io::Result<()> {
    let mut bytes = Vec::new();
    for (i, frame) in frames.iter().enumerate() {
        write_frame(&mut bytes, if i + 1 < frames.len() { MORE } else { 0 }, frame)?;
    }
    stream.write_all(&bytes)?;
    stream.flush()
}

/// Reads the next message. For control commands of the peer, `answer` receives the frame to send back.
///
/// # Errors
/// Returns an error if the connection is broken, or a message has too many frames or bytes.
pub fn receive(stream: &mut impl Read, answer: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<Vec<Vec<u8>>> {
    let (mut frames, mut room) = (Vec::new(), MESSAGE_BYTES);
    loop {
        let (flags, body) = read_frame(stream, room)?;
        if flags & COMMAND != 0 {
            if command(&body) == Some("PING") {
                // After the name there are two bytes of time and the context to send back.
                let context = body.get(7..).unwrap_or_default();
                let mut pong = Vec::new();
                write_frame(&mut pong, COMMAND, &[b"\x04PONG", context].concat())?;
                answer(&pong)?;
            }
            continue;
        }
        room -= body.len() as u64;
        frames.push(body);
        if flags & MORE == 0 {
            return Ok(frames);
        }
        if frames.len() == FRAMES_MAX {
            return Err(wrong(format!("a message has more than {FRAMES_MAX} frames")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer with prepared input, which records its output.
    struct Peer {
        theirs: io::Cursor<Vec<u8>>,
        ours: Vec<u8>,
    }

    impl Read for Peer {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.theirs.read(buffer)
        }
    }

    impl Write for Peer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.ours.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn greeted(change: impl Fn(&mut Vec<u8>)) -> io::Result<()> {
        let mut theirs = greeting().to_vec();
        theirs[11] = 1;
        write_frame(&mut theirs, COMMAND, &[b"\x05READY".to_vec(), property("Socket-Type", "ROUTER")].concat())?;
        change(&mut theirs);
        greet(&mut Peer { theirs: io::Cursor::new(theirs), ours: Vec::new() }, "DEALER")
    }

    #[test]
    fn peers_greet_each_other() {
        greeted(|_| {}).expect("greeted");
        type Change = fn(&mut Vec<u8>);
        let cases: [(Change, &str); 6] = [
            (|theirs| theirs[0] = b'H', "does not use ZeroMQ"),
            (|theirs| theirs[10] = 2, "version 2"),
            (|theirs| theirs[12..17].copy_from_slice(b"PLAIN"), "mechanism PLAIN"),
            (|theirs| theirs[67..72].copy_from_slice(b"ERROR"), "refused the connection"),
            (|theirs| theirs[64] = 0, "not ready"),
            (|theirs| theirs.truncate(30), ""),
        ];
        for (change, message) in cases {
            let error = greeted(change).expect_err(message).to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn messages_come_as_they_were_sent() {
        let frames: [&[u8]; 4] = [b"", b"one", &[7; 255], &[9; 70_000]];
        let mut wire = Vec::new();
        send(&mut wire, &frames).expect("sent");
        let mut answers = Vec::new();
        write_frame(&mut wire, COMMAND, b"\x04PING\x00\x10context").expect("written");
        send(&mut wire, &[b"two"]).expect("sent");
        let mut read = io::Cursor::new(&wire);
        let mut answer = |bytes: &[u8]| answers.write_all(bytes);
        assert_eq!(receive(&mut read, &mut answer).expect("a message"), frames);
        assert_eq!(receive(&mut read, &mut answer).expect("a message"), [b"two"]);
        assert_eq!(answers, b"\x04\x0c\x04PONGcontext");
        assert!(receive(&mut read, &mut |_| Ok(())).is_err());
    }

    #[test]
    fn a_message_is_bounded() {
        let mut wire = vec![LONG];
        wire.extend((MESSAGE_BYTES + 1).to_be_bytes());
        let error = receive(&mut &wire[..], &mut |_| Ok(())).expect_err("too long").to_string();
        assert!(error.contains("more than"), "{error}");
        let wire = [MORE, 0].repeat(40);
        let error = receive(&mut &wire[..], &mut |_| Ok(())).expect_err("too many").to_string();
        assert!(error.contains("frames"), "{error}");
        // An announced frame that never arrives takes no memory.
        let mut wire = vec![LONG];
        wire.extend(MESSAGE_BYTES.to_be_bytes());
        assert!(receive(&mut &wire[..], &mut |_| Ok(())).is_err());
    }
}
