//! ZeroMQ's wire protocol from the side of a server (a ROUTER; <https://rfc.zeromq.org/spec/23/>), written independently of the library's.

use std::io::{Read, Write};

pub const MORE: u8 = 1;
pub const LONG: u8 = 2;
pub const COMMAND: u8 = 4;

/// Greeting of a server: signature, version 3.0, no security, and the socket type ROUTER.
pub fn greeting() -> Vec<u8> {
    let mut bytes = vec![0; 64];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes.extend(frame(COMMAND, b"\x05READY\x0bSocket-Type\0\0\0\x06ROUTER"));
    bytes
}

pub fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = match u8::try_from(body.len()) {
        Ok(size) => vec![flags, size],
        Err(_) => [&[flags | LONG][..], &(body.len() as u64).to_be_bytes()].concat(),
    };
    bytes.extend_from_slice(body);
    bytes
}

pub fn message(frames: &[&[u8]]) -> Vec<u8> {
    let last = frames.len().saturating_sub(1);
    frames.iter().enumerate().flat_map(|(at, body)| frame(if at < last { MORE } else { 0 }, body)).collect()
}

/// Reads the greeting of a client.
pub fn greeted(stream: &mut impl Read) -> std::io::Result<()> {
    stream.read_exact(&mut [0; 64])?;
    read_frame(stream).map(drop)
}

fn read_frame(stream: &mut impl Read) -> std::io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 2];
    stream.read_exact(&mut head)?;
    let mut size = usize::from(head[1]);
    if head[0] & LONG != 0 {
        let mut rest = [0; 7];
        stream.read_exact(&mut rest)?;
        size = rest.iter().fold(size, |size, byte| size << 8 | usize::from(*byte));
    }
    let mut body = vec![0; size];
    stream.read_exact(&mut body)?;
    Ok((head[0], body))
}

/// Reads the next message of a client.
pub fn receive(stream: &mut impl Read) -> std::io::Result<Vec<Vec<u8>>> {
    let mut frames = Vec::new();
    loop {
        let (flags, body) = read_frame(stream)?;
        if flags & COMMAND == 0 {
            frames.push(body);
            if flags & MORE == 0 {
                return Ok(frames);
            }
        }
    }
}

/// Writes the same bytes `count` times. Stops with an error if the client disconnects.
pub fn flood(stream: &mut impl Write, bytes: &[u8], count: usize) -> std::io::Result<()> {
    let at_once = (1 + (1 << 14) / bytes.len()).min(count);
    let many = bytes.repeat(at_once);
    (0..count / at_once).try_for_each(|_| stream.write_all(&many))
}
