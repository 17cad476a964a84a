//! Tables of attention on a device: which queries read which keys. They are made once per batch and tile size.

use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::Words;
use crate::attention::tiles::{Batch, KEY_WORDS, QUERY_WORDS, Tiles};

/// Tables of a batch on a device, for one tile size.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(super) queries: Words,
    pub(super) query_tiles: u32,
    pub(super) keys: Words,
    pub(super) key_tiles: u32,
    pub(super) readers: Words,
}

/// Tables for tiles of `TILE` rows. [`OnDevices`](crate::table::OnDevices) tells the copies on a device apart by their types.
struct OfTile<const TILE: usize>(Tables);

impl Tables {
    fn new(client: &Client, tiles: &Tiles) -> Self {
        let of = |words: &[u32], each: usize| (words.len() / each) as u32;
        Self {
            query_tiles: of(&tiles.queries, QUERY_WORDS),
            key_tiles: of(&tiles.keys, KEY_WORDS),
            queries: Words::new(client, &tiles.queries),
            keys: Words::new(client, &tiles.keys),
            readers: Words::new(client, &tiles.readers),
        }
    }
}

/// Calls `f` with the tables of `batch` on the device of `like`, which are created at the first request.
pub(super) fn with_tables<R>(batch: &Batch, like: &CubeTensor, tile: usize, f: impl FnOnce(&Tables) -> R) -> R {
    let copies = match batch {
        Batch::Within(segments) => segments.on_devices(),
        Batch::Across(cross) => cross.on_devices(),
    };
    let make = || Tables::new(&like.client, &batch.tiles(tile));
    match tile {
        8 => f(&copies.get(&like.device, || OfTile::<8>(make())).0),
        16 => f(&copies.get(&like.device, || OfTile::<16>(make())).0),
        32 => f(&copies.get(&like.device, || OfTile::<32>(make())).0),
        64 => f(&copies.get(&like.device, || OfTile::<64>(make())).0),
        _ => unreachable!("no kernel has tiles of {tile} rows"),
    }
}
