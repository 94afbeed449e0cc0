//! Access points: the instructions of a program that access memory.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use codec::bytes::{ByteReader, put_signed, put_varint};
use entity::AppPc;
use hashbrown::HashMap;

/// An access of an instruction: METRIC's `point_id`. An instruction that reads and writes has two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AccessPoint {
    /// The image of the process that the instruction belongs to.
    pub image: u32,
    pub pc: AppPc,
    /// Bytes.
    pub size: u32,
    pub is_write: bool,
}

/// The number of an access point in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PointId(pub u32);

/// The access points of a file, in order of their numbers.
#[derive(Debug, Default)]
pub(crate) struct PointTable {
    points: Vec<AccessPoint>,
    ids: HashMap<AccessPoint, PointId>,
    /// Points that are in the file already.
    written: usize,
}

impl PointTable {
    pub(crate) fn get(&self, PointId(id): PointId) -> Option<&AccessPoint> {
        self.points.get(id as usize)
    }

    pub(crate) fn all(&self) -> &[AccessPoint] {
        &self.points
    }

    /// Returns the number of a point, which is a new one if the point is new.
    pub(crate) fn id_of(&mut self, point: AccessPoint) -> PointId {
        *self.ids.entry(point).or_insert_with(|| {
            self.points.push(point);
            PointId(u32::try_from(self.points.len() - 1).unwrap_or(u32::MAX))
        })
    }

    /// Writes the points that were not written yet.
    pub(crate) fn write_new(&mut self, out: &mut Vec<u8>) {
        let mut before = 0;
        for point in self.points.get(self.written..).unwrap_or(&[]) {
            put_varint(out, u64::from(point.image));
            put_signed(out, point.pc.get().wrapping_sub(before));
            put_varint(out, u64::from(point.size) << 1 | u64::from(point.is_write));
            before = point.pc.get();
        }
        self.written = self.points.len();
    }

    /// Reads points behind those that are known. Returns `None` if they are malformed.
    pub(crate) fn read(&mut self, content: &[u8]) -> Option<()> {
        let (mut fields, mut before) = (ByteReader::new(content), 0u64);
        while !fields.is_empty() {
            let image = fields.varint_u32()?;
            before = before.wrapping_add(fields.signed()?);
            let size = fields.varint()?;
            self.points.push(AccessPoint {
                image,
                pc: AppPc::new(before),
                size: u32::try_from(size >> 1).ok()?,
                is_write: size & 1 != 0,
            });
        }
        Some(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn points_come_back() {
        let point = |pc, size, is_write| AccessPoint { image: 1, pc: AppPc::new(pc), size, is_write };
        let points = [point(0x1000, 4, false), point(0x1000, 4, true), point(7, u32::MAX, false)];
        let (mut table, mut read) = (PointTable::default(), PointTable::default());
        for part in points.chunks(2) {
            for &point in part {
                table.id_of(point);
            }
            let mut bytes = Vec::new();
            table.write_new(&mut bytes);
            read.read(&bytes).unwrap();
        }
        assert_eq!((read.all(), table.id_of(points[1])), (points.as_slice(), PointId(1)));
        assert_eq!(read.read(&[1, 2]), None);
    }
}
