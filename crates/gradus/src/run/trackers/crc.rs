//! Cyclic redundancy checks of 32 bits, reflected: one function, two polynomials.

/// Castagnoli's polynomial: TensorFlow's records.
pub(super) const CASTAGNOLI: u32 = 0x82f6_3b78;
/// The polynomial of Ethernet and gzip: the log of Weights & Biases.
pub(super) const IEEE: u32 = 0xedb8_8320;

/// The check of `parts` one after the other.
pub(super) fn crc32(polynomial: u32, parts: &[&[u8]]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ polynomial } else { crc >> 1 };
    let bytes = parts.iter().copied().flatten();
    !bytes.fold(!0u32, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

/// As TensorFlow stores a check, so that data that hold checks are no special case: rotated, and a constant added.
pub(super) fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_of_the_usual_nine_digits() {
        // The check values of CRC-32/ISCSI and CRC-32/ISO-HDLC in Williams' catalogue.
        assert_eq!(crc32(CASTAGNOLI, &[b"123456789"]), 0xe306_9283);
        assert_eq!(crc32(IEEE, &[b"1234", b"56789"]), 0xcbf4_3926);
        assert_eq!(crc32(IEEE, &[]), 0);
    }
}
