//! A sound store passes the suite: one that lets several write at once, and one that lets them take turns.

mod memory;

mod concurrent_writers {
    use super::memory::MemoryFixture;

    towpath_testkit::store_conformance!(@in_memory MemoryFixture::concurrent());
}

mod one_writer_at_a_time {
    use super::memory::MemoryFixture;

    towpath_testkit::store_conformance!(@in_memory MemoryFixture::one_writer_at_a_time());
}
