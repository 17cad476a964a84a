//! Sizes of the tiles of attention, and what else its kernels in CubeCL are compiled for.

use burn_cubecl::CubeDevice;

use crate::attention::AttentionShape;

/// Compile-time parameters of the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Tiling {
    /// Rows of a tile.
    pub tile: usize,
    /// Each unit computes `each` rows and `each` columns of a tile of scores, so it reuses each value from shared memory `each` times.
    pub each: usize,
    /// Width of a head.
    pub dim: usize,
    /// Query heads per key/value head.
    pub group: usize,
    /// Whether scores are softly capped.
    pub is_capped: bool,
    /// Whether scores have a bias by distance.
    pub is_biased: bool,
    /// Whether probabilities are dropped.
    pub drops: bool,
}

impl Tiling {
    /// Returns the largest tiles that fit into the shared memory of `device`. `None` if not even small ones fit.
    pub fn new(shape: &AttentionShape, is_biased: bool, drops: bool, device: &CubeDevice) -> Option<Self> {
        let client = device.client();
        let hardware = &client.properties().hardware;
        let (group, is_capped) = (shape.group(), shape.cap.is_some());
        let of = |(tile, each)| Self { tile, each, dim: shape.head_dim, group, is_capped, is_biased, drops };
        let fits = |tiling: &Self| {
            tiling.bytes() <= hardware.max_shared_memory_size && tiling.units() <= hardware.max_units_per_cube
        };
        TILES.map(of).into_iter().find(fits)
    }

    /// Bytes of shared memory of the largest kernel: four tiles of rows, two of scores, and the diagonals of a tile.
    pub fn bytes(&self) -> usize {
        4 * self.tile * (4 * (self.dim + 1) + 2 * (self.tile + 1) + 2)
    }

    /// Number of units that share a row, which is also the number of rows computed side by side.
    fn side(&self) -> usize {
        self.tile / self.each
    }

    pub fn units(&self) -> u32 {
        (self.side() * self.side()) as u32
    }
}

/// Tile sizes, and rows per unit.
pub(super) const TILES: [(usize, usize); 4] = [(64, 4), (32, 2), (16, 1), (8, 1)];
