//! Checksum of TensorFlow's records: masked CRC-32C.

/// Castagnoli polynomial, reflected.
const CASTAGNOLI: u32 = 0x82f6_3b78;

/// CRC-32C of `bytes`.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ CASTAGNOLI } else { crc >> 1 };
    !bytes.iter().fold(!0u32, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

/// Masks the CRC-32C as TensorFlow does: rotates it and adds a constant. Data that contain CRCs are then no special case.
pub(super) fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_of_the_usual_nine_digits() {
        // The check value of CRC-32/ISCSI in Williams' catalogue.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[]), 0);
    }
}
