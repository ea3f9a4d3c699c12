//! The file of a simulated cluster: a line of JSON per change.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use super::world::Entry;

/// An open file. Others may have it open, too.
pub(super) struct Journal {
    file: File,
    /// How far it was read.
    read: u64,
}

/// Nobody else writes while it lives.
pub(super) struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        // Closing the file unlocks it as well.
        let _ = self.0.unlock();
    }
}

impl Journal {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        Ok(Self { file, read: 0 })
    }

    pub(super) fn lock(&self) -> io::Result<Locked> {
        let file = self.file.try_clone()?;
        file.lock()?;
        Ok(Locked(file))
    }

    /// What was written since it was last read. Needs the lock.
    pub(super) fn read_on(&mut self) -> io::Result<Vec<Entry>> {
        if self.file.metadata()?.len() == self.read {
            return Ok(Vec::new());
        }
        self.file.seek(SeekFrom::Start(self.read))?;
        // Bytes, and no text yet: the torn end may be one in the middle of a character.
        let mut bytes = Vec::new();
        self.file.read_to_end(&mut bytes)?;
        // A writer that was killed in the middle of a line leaves no end of it. Nobody was told of that change, and
        // whoever holds the lock takes it away.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if whole < bytes.len() {
            self.file.set_len(self.read + whole as u64)?;
        }
        self.read += whole as u64;
        let lines = bytes[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).map_err(io::Error::other)).collect()
    }

    /// Writes a change down. Needs the lock, and that everything was read.
    pub(super) fn write(&mut self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry).map_err(io::Error::other)?;
        line.push(b'\n');
        self.file.write_all(&line)?;
        self.read += line.len() as u64;
        Ok(())
    }
}
