//! PNG encoder for 8-bit RGB images.

use std::io::Write;

use flate2::{Compression, Crc, write::ZlibEncoder};

/// Encodes an image of `width` × `height` pixels, three bytes each, row by row.
///
/// # Panics
/// If `rgb` does not have that many pixels.
pub fn encode(rgb: &[u8], width: u32, height: u32) -> Vec<u8> {
    let stride = width as usize * 3;
    assert_eq!(rgb.len(), stride * height as usize, "three bytes a pixel");
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut header = [width.to_be_bytes(), height.to_be_bytes()].concat();
    // 8 bits per channel, RGB, deflate, the standard filters, not interlaced.
    header.extend([8, 2, 0, 0, 0]);
    chunk(&mut file, *b"IHDR", &header);

    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(6));
    let mut above = vec![0; stride];
    let mut filtered = Vec::with_capacity(stride + 1);
    for row in rgb.chunks_exact(stride) {
        // Filter 2: the difference to the row above, mostly zeros in a chart.
        filtered.clear();
        filtered.push(2);
        filtered.extend(row.iter().zip(&above).map(|(value, above)| value.wrapping_sub(*above)));
        encoder.write_all(&filtered).expect("writing to memory");
        above.copy_from_slice(row);
    }
    chunk(&mut file, *b"IDAT", &encoder.finish().expect("writing to memory"));
    chunk(&mut file, *b"IEND", &[]);
    file
}

fn chunk(file: &mut Vec<u8>, kind: [u8; 4], data: &[u8]) {
    file.extend((data.len() as u32).to_be_bytes());
    file.extend(kind);
    file.extend(data);
    let mut crc = Crc::new();
    crc.update(&kind);
    crc.update(data);
    file.extend(crc.sum().to_be_bytes());
}

/// Averages each square of `factor` × `factor` pixels into one pixel.
pub fn shrink(rgb: &[u8], width: usize, height: usize, factor: usize) -> Vec<u8> {
    let (wide, high) = (width / factor, height / factor);
    let mut small = Vec::with_capacity(wide * high * 3);
    let area = (factor * factor) as u32;
    for y in 0..high {
        for x in 0..wide {
            for channel in 0..3 {
                let mut sum = area / 2;
                for row in y * factor..(y + 1) * factor {
                    for column in x * factor..(x + 1) * factor {
                        sum += u32::from(rgb[(row * width + column) * 3 + channel]);
                    }
                }
                small.push((sum / area) as u8);
            }
        }
    }
    small
}
