//! Owned buffers with stable addresses, and the pool of one worker thread that recycles them.
//!
//! A [`Buf`] is page-aligned memory of one size class. The pool allocates memory from the kernel in chunks of
//! [`CHUNK_BYTES`]; each chunk contains buffers of one class and can be registered with io_uring as one fixed buffer.
//! Dropping a buffer returns it to its pool; [`Pool::trim`] returns idle chunks to the kernel.
//! Chunks of large buffers are allocated in pairs that form a huge page if the kernel has one available. A buffer may
//! also be a chunk of shared memory, which module [`crate::shm`] recycles, or have its own memory. Nothing here submits
//! I/O.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::shared_bytes::{RemoteFreeList, SharedBytes};
use crate::shm;

/// Buffer size of each class in bytes, ascending. The smallest class holds the header section of a request, the largest
/// a chunk of a large file.
pub const CLASS_BYTES: [u32; 7] = [4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];

/// Alignment in bytes of the address and capacity of every buffer of a pool. It suffices for reads and writes of files
/// open with `O_DIRECT` on every device in use. The caller aligns offset and length in the file.
pub const ALIGNMENT: usize = 4096;

/// Size in bytes of a chunk: the unit in which the pool allocates memory from the kernel, registers it with io_uring
/// and frees it.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Minimum size of a pool in chunks: enough for received bytes, header sections, and a reserve.
const CHUNKS_MIN: usize = 4;

/// First class for bodies; smaller classes are for header sections. A quarter of the pool's chunks is reserved for each
/// of the two groups. Requests that wait for body memory thus cannot use up the memory for header sections, and bodies
/// leave memory for new requests. At the limit, a long header section may still use an idle body buffer.
const BODY_CLASS: usize = 2;

/// Divisor of the pool size that gives the reservation of each group, see [`BODY_CLASS`].
const RESERVED_DIVISOR: usize = 4;

/// First class for reads of large files. Contiguous memory is a single segment for the device: a disk delivered 3.3
/// GB/s with pages of 4 KiB and 8 GB/s with huge pages.
const LARGE_CLASS: usize = 3;

/// Size in bytes of a huge page on the usual architectures. A chunk of large buffers is half of such a page. Where huge
/// pages are larger or unavailable, the same range consists of normal pages.
const HUGE_BYTES: usize = 2 * CHUNK_BYTES;

const _: () = assert!(CLASS_BYTES[CLASS_BYTES.len() - 1] as usize <= CHUNK_BYTES);
// Chunks are page-aligned, the class sizes divide the chunk size, and the smallest class is a multiple of the
// alignment.
const _: () =
    assert!((CLASS_BYTES[0] as usize).is_multiple_of(ALIGNMENT) && CHUNK_BYTES.is_multiple_of(ALIGNMENT));

/// The pool of one thread. Clones share the same memory.
#[derive(Clone)]
pub struct Pool(Rc<PoolState>);

struct PoolState {
    chunks: RefCell<Vec<Option<Chunk>>>,
    /// Free buffers of each class, last in, first out, so that memory still in the CPU cache is reused first.
    free: [RefCell<Vec<BufId>>; CLASS_BYTES.len()],
    chunks_max: usize,
    chunks_live: Cell<usize>,
    /// Number of live chunks that are divided into body buffers.
    body_chunks: Cell<usize>,
    exhausted: Cell<u64>,
    /// Number of refused requests for header-section buffers; part of `exhausted`.
    heads_exhausted: Cell<u64>,
    /// Released buffers whose content was shared; any thread may have released them.
    returned: Arc<RemoteFreeList>,
}

struct Chunk {
    memory: ChunkMemory,
    class: u8,
    /// Whether the chunk is registered with the thread's io_uring as the fixed buffer of the same index.
    registered: bool,
}

/// The memory of a chunk, which stays mapped while this value exists.
#[derive(Clone)]
pub(crate) struct ChunkMemory {
    /// The memory of this chunk alone, or the huge page that it shares with a second chunk.
    mapping: Arc<Mapping>,
    /// Offset in the mapping in bytes.
    offset: usize,
}

impl ChunkMemory {
    /// Returns the address of the first of [`CHUNK_BYTES`] bytes.
    pub(crate) fn start(&self) -> NonNull<u8> {
        // SAFETY: a chunk is within its mapping: the second chunk of a huge page is its upper half, see `grow`.
        unsafe { self.mapping.memory.add(self.offset) }
    }
}

/// Position of a buffer: the index of its chunk and its index within the chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufId {
    chunk: u16,
    index: u16,
}

/// The memory of a pool, and its refusals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounters {
    /// Bytes currently allocated from the kernel.
    pub bytes: u64,
    /// Bytes of `bytes` that no buffer in use occupies.
    pub idle_bytes: u64,
    /// Requests refused because the pool was at its limit, since start.
    pub exhausted: u64,
}

impl Pool {
    /// Creates a pool that allocates at most `bytes_max` from the kernel, rounded down to a multiple of the chunk size,
    /// at least [`CHUNKS_MIN`] chunks.
    pub fn new(bytes_max: usize) -> Pool {
        let chunks_max = (bytes_max / CHUNK_BYTES).clamp(CHUNKS_MIN, u16::MAX as usize);
        Pool(Rc::new(PoolState {
            chunks: RefCell::new(Vec::new()),
            free: Default::default(),
            chunks_max,
            chunks_live: Cell::new(0),
            body_chunks: Cell::new(0),
            exhausted: Cell::new(0),
            heads_exhausted: Cell::new(0),
            returned: Arc::default(),
        }))
    }

    /// Returns an empty buffer with room for at least `bytes`, or a buffer of the largest class when `bytes` is larger.
    /// Returns `None` when the pool is at its limit or the kernel has no memory. At the limit, the buffer may be larger
    /// than requested if a larger one is idle. A quarter of the pool is reserved for header sections, and a quarter for
    /// bodies.
    pub fn get(&self, bytes: usize) -> Option<Buf> {
        let (class, shared) = (class_of(bytes), &self.0);
        shared.take_back();
        let recycled = shared.free[class].borrow_mut().pop().map(|id| (class, id));
        let fresh = || shared.grow(class).map(|id| (class, id));
        let Some((class, id)) = recycled.or_else(fresh).or_else(|| shared.at_limit(class)) else {
            shared.exhausted.set(shared.exhausted.get() + 1);
            if class < BODY_CLASS {
                shared.heads_exhausted.set(shared.heads_exhausted.get() + 1);
            }
            return None;
        };
        let chunks = shared.chunks.borrow();
        let chunk = chunks[id.chunk as usize].as_ref().expect("a free buffer's chunk is mapped");
        let offset = id.index as usize * CLASS_BYTES[class] as usize;
        // SAFETY: the offset is inside the chunk: `cut` numbers only buffers that fit into CHUNK_BYTES.
        let memory = unsafe { chunk.memory.start().add(offset) };
        let owner = MemoryOwner::Pool { class: class as u8, id, pool: Rc::clone(shared) };
        Some(Buf { memory, len: 0, capacity: CLASS_BYTES[class], owner })
    }

    /// Returns the bytes that can still be lent: idle buffers plus memory not yet allocated from the kernel.
    pub fn spare_bytes(&self) -> u64 {
        let counters = self.counters();
        assert!(counters.idle_bytes <= counters.bytes, "a buffer is idle once");
        assert!(counters.bytes <= self.bytes_max(), "the limit of the pool holds");
        self.bytes_max() - (counters.bytes - counters.idle_bytes)
    }

    /// Returns the number of refused requests for buffers of the header-section classes since start.
    pub fn heads_exhausted(&self) -> u64 {
        self.0.heads_exhausted.get()
    }

    /// Whether a buffer of this size would come out of the quarter that is reserved for bodies. Such a buffer uses no
    /// memory that header sections could use.
    pub fn is_from_body_reserve(&self, bytes: usize) -> bool {
        let (class, shared) = (class_of(bytes), &self.0);
        let idle = |class: usize| shared.free[class].borrow().len() * CLASS_BYTES[class] as usize;
        let idle_bytes: usize = (BODY_CLASS..CLASS_BYTES.len()).map(idle).sum();
        let lent_bytes = shared.body_chunks.get() * CHUNK_BYTES - idle_bytes;
        let part_bytes = shared.chunks_max / RESERVED_DIVISOR * CHUNK_BYTES;
        class >= BODY_CLASS && lent_bytes + CLASS_BYTES[class] as usize <= part_bytes
    }

    /// Whether a buffer of this size belongs to the classes for bodies.
    pub fn is_for_bodies(bytes: usize) -> bool {
        class_of(bytes) >= BODY_CLASS
    }

    /// The limit of the pool.
    pub fn bytes_max(&self) -> u64 {
        (self.0.chunks_max * CHUNK_BYTES) as u64
    }

    /// Frees chunks that have only idle buffers, and releases the pages of idle buffers in other chunks that are not
    /// registered with io_uring. Before a registered chunk is freed, `unregister` removes its registration and returns
    /// whether that succeeded. Returns the number of bytes of the freed chunks.
    pub fn trim(&self, mut unregister: impl FnMut(u16) -> bool) -> usize {
        let shared = &self.0;
        shared.take_back();
        let mut chunks = shared.chunks.borrow_mut();
        let is_idle = |chunk_index: usize, chunk: &Chunk| {
            let free = shared.free[chunk.class as usize].borrow();
            free.iter().filter(|id| id.chunk as usize == chunk_index).count()
                == buffers_in_chunk(chunk.class as usize)
        };
        let places =
            chunks.iter().enumerate().filter_map(|(chunk_index, slot)| Some((chunk_index, slot.as_ref()?)));
        // Half of a huge page cannot be freed while the other half is in use.
        let used: Vec<_> = places
            .clone()
            .filter(|(chunk_index, chunk)| !is_idle(*chunk_index, chunk))
            .map(|(_, chunk)| chunk.page())
            .collect();
        let idle: Vec<_> = places
            .filter(|(_, chunk)| !used.contains(&chunk.page()))
            .map(|(chunk_index, _)| chunk_index)
            .collect();
        let mut given_back = 0;
        for chunk_index in idle {
            let slot = &mut chunks[chunk_index];
            let Some(chunk) =
                slot.as_mut().filter(|chunk| !chunk.registered || unregister(chunk_index as u16))
            else {
                continue;
            };
            let class = chunk.class as usize;
            shared.free[class].borrow_mut().retain(|id| id.chunk as usize != chunk_index);
            shared.count(class, false);
            *slot = None;
            shared.chunks_live.set(shared.chunks_live.get() - 1);
            given_back += CHUNK_BYTES;
        }
        // The remaining chunks have buffers in use. The pages of a registered chunk are pinned and cannot be freed.
        for (chunk_index, chunk) in chunks.iter().enumerate() {
            if let Some(chunk) = chunk.as_ref().filter(|chunk| !chunk.registered) {
                chunk.release_pages(chunk_index, &shared.free[chunk.class as usize].borrow());
            }
        }
        given_back
    }

    /// Returns the maximum number of chunks, which bounds their indices.
    pub(crate) fn chunks_max(&self) -> usize {
        self.0.chunks_max
    }

    /// Returns the memory use of the pool and its refusals.
    pub fn counters(&self) -> PoolCounters {
        self.0.take_back();
        let idle = |class: usize| self.0.free[class].borrow().len() as u64 * u64::from(CLASS_BYTES[class]);
        PoolCounters {
            bytes: (self.0.chunks_live.get() * CHUNK_BYTES) as u64,
            idle_bytes: (0..CLASS_BYTES.len()).map(idle).sum(),
            exhausted: self.0.exhausted.get(),
        }
    }
}

/// Returns the smallest class with room for this many bytes, or the largest class if none has.
fn class_of(bytes: usize) -> usize {
    CLASS_BYTES.iter().position(|&size| size as usize >= bytes).unwrap_or(CLASS_BYTES.len() - 1)
}

impl PoolState {
    /// Moves buffers that are no longer shared to the free lists.
    fn take_back(&self) {
        self.returned.take(|class, id| self.free[class as usize].borrow_mut().push(id));
    }

    /// Takes a buffer from idle memory of other classes.
    fn at_limit(&self, class: usize) -> Option<(usize, BufId)> {
        if let Some(id) = self.convert(class) {
            return Some((class, id));
        }
        // Buffers of the smallest class are in use for a long time. Such a use of a body buffer would prevent `convert` from
        // dividing the buffer's chunk for another class.
        let end = if class == 0 { BODY_CLASS } else { CLASS_BYTES.len() };
        (class + 1..end).find_map(|larger| Some((larger, self.free[larger].borrow_mut().pop()?)))
    }

    /// Whether `count` more chunks may be assigned to this class. With `from`, the chunk is taken from the class
    /// `from`.
    fn may_cut(&self, count: usize, class: usize, from: Option<usize>) -> bool {
        let is_body = class >= BODY_CLASS;
        if from.is_some_and(|from| (from >= BODY_CLASS) == is_body) {
            return true;
        }
        let bodies = self.body_chunks.get();
        let taken = if is_body { bodies } else { self.chunks_live.get() - bodies };
        taken + count <= self.chunks_max - self.chunks_max / RESERVED_DIVISOR
    }

    /// Counts a chunk of this class as added or removed.
    fn count(&self, class: usize, one_more: bool) {
        if class >= BODY_CLASS {
            let before = self.body_chunks.get();
            assert!(one_more || before > 0, "a removed chunk was counted");
            self.body_chunks.set(if one_more { before + 1 } else { before - 1 });
        }
    }

    /// Divides a chunk of another class for this class, if all its buffers are idle. Its io_uring registration stays
    /// valid because it covers the memory of the chunk, not its buffers.
    fn convert(&self, class: usize) -> Option<BufId> {
        let mut chunks = self.chunks.borrow_mut();
        for (chunk_index, slot) in chunks.iter_mut().enumerate() {
            let Some(chunk) = slot.as_mut().filter(|chunk| chunk.class as usize != class) else { continue };
            let mut free = self.free[chunk.class as usize].borrow_mut();
            let all = buffers_in_chunk(chunk.class as usize);
            if !self.may_cut(1, class, Some(chunk.class as usize)) {
                continue;
            }
            if free.len() < all || free.iter().filter(|id| id.chunk as usize == chunk_index).count() != all {
                continue;
            }
            free.retain(|id| id.chunk as usize != chunk_index);
            drop(free);
            self.count(chunk.class as usize, false);
            self.count(class, true);
            chunk.class = class as u8;
            return Some(self.cut(chunk_index, class));
        }
        None
    }

    /// Puts all buffers of a chunk except the first on the free list and returns the first.
    fn cut(&self, chunk_index: usize, class: usize) -> BufId {
        let id = |index: usize| BufId { chunk: chunk_index as u16, index: index as u16 };
        self.free[class].borrow_mut().extend((1..buffers_in_chunk(class)).rev().map(id));
        id(0)
    }

    /// Maps a chunk for `class`, or two chunks if they form a huge page. Puts all their buffers except one on the free
    /// list, and returns that one.
    fn grow(&self, class: usize) -> Option<BufId> {
        let can_take =
            |count| self.chunks_live.get() + count <= self.chunks_max && self.may_cut(count, class, None);
        if class >= LARGE_CLASS
            && can_take(2)
            && let Ok(page) = Mapping::huge().map(Arc::new)
        {
            let id = self.put(Chunk::new(&page, CHUNK_BYTES, class));
            self.free[class].borrow_mut().push(id);
            return Some(self.put(Chunk::new(&page, 0, class)));
        }
        if !can_take(1) {
            return None;
        }
        let mapping = Arc::new(Mapping::anonymous(CHUNK_BYTES).ok()?);
        Some(self.put(Chunk::new(&mapping, 0, class)))
    }

    /// Adds a chunk to the table and returns one of its buffers.
    fn put(&self, chunk: Chunk) -> BufId {
        let class = chunk.class as usize;
        let mut chunks = self.chunks.borrow_mut();
        let chunk_index = chunks.iter().position(Option::is_none).unwrap_or_else(|| {
            chunks.push(None);
            chunks.len() - 1
        });
        chunks[chunk_index] = Some(chunk);
        self.chunks_live.set(self.chunks_live.get() + 1);
        assert!(self.chunks_live.get() <= self.chunks_max, "the limit of the pool holds");
        self.count(class, true);
        self.cut(chunk_index, class)
    }
}

fn buffers_in_chunk(class: usize) -> usize {
    CHUNK_BYTES / CLASS_BYTES[class] as usize
}

impl Chunk {
    fn new(mapping: &Arc<Mapping>, offset: usize, class: usize) -> Chunk {
        let memory = ChunkMemory { mapping: Arc::clone(mapping), offset };
        Chunk { memory, class: class as u8, registered: false }
    }

    /// Returns the pages of idle buffers to the kernel; those buffers then read as zeroes.
    fn release_pages(&self, chunk_index: usize, free: &[BufId]) {
        let mut idle: Vec<u16> =
            free.iter().filter(|id| id.chunk as usize == chunk_index).map(|id| id.index).collect();
        idle.sort_unstable();
        let bytes = CLASS_BYTES[self.class as usize] as usize;
        for run in idle.chunk_by(|one, next| one + 1 == *next) {
            // SAFETY: the run is of buffers of this chunk, so it is within its mapping.
            let start = unsafe { self.memory.start().add(run[0] as usize * bytes) };
            let advice = rustix::mm::Advice::LinuxDontNeed;
            // SAFETY: the range belongs to idle buffers only, whose content is unused; the mapping is private and
            // anonymous, so its pages are zeroed when they are next touched (madvise(2)).
            let _ = unsafe { rustix::mm::madvise(start.as_ptr().cast(), run.len() * bytes, advice) };
        }
    }

    /// Returns the start of the mapping, which distinguishes chunks of different mappings.
    fn page(&self) -> NonNull<u8> {
        self.memory.mapping.memory
    }
}

/// Memory mapping of complete pages, readable and writable, zeroed by the kernel before first use.
pub(crate) struct Mapping {
    memory: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is a range of addresses, which are the same on every thread; the code that makes slices of it
// ensures exclusive access.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    const PROTECTION: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

    /// Maps private memory.
    pub(crate) fn anonymous(bytes: usize) -> Result<Mapping, Errno> {
        let (anywhere, private) = (std::ptr::null_mut(), MapFlags::PRIVATE);
        // SAFETY: a fresh private anonymous mapping aliases nothing.
        let memory = unsafe { rustix::mm::mmap_anonymous(anywhere, bytes, Mapping::PROTECTION, private)? };
        Ok(Mapping { memory: NonNull::new(memory.cast()).ok_or(Errno::FAULT)?, bytes })
    }

    /// Maps private memory that may become a huge page. The kernel allocates one at the first write, if such pages are
    /// available and enabled (Documentation/admin-guide/mm/transhuge.rst).
    fn huge() -> Result<Mapping, Errno> {
        // Maps twice the size, then unmaps the ranges before the first aligned address and behind the huge page.
        let (start, all) = (Mapping::anonymous(2 * HUGE_BYTES)?, 2 * HUGE_BYTES);
        let before = start.memory.as_ptr().align_offset(HUGE_BYTES);
        let start = std::mem::ManuallyDrop::new(start).memory;
        // SAFETY: `before` is less than HUGE_BYTES, so the address is inside of the mapping of twice that size.
        let memory = unsafe { start.add(before) };
        // SAFETY: as above, and at least HUGE_BYTES of the mapping follow `memory`.
        let end = unsafe { memory.add(HUGE_BYTES) };
        for (part, bytes) in [(start, before), (end, all - before - HUGE_BYTES)] {
            if bytes > 0 {
                // SAFETY: the part was mapped above, and nothing else refers to it.
                unsafe { rustix::mm::munmap(part.as_ptr().cast(), bytes)? };
            }
        }
        let advice = rustix::mm::Advice::LinuxHugepage;
        // SAFETY: the range is our mapping, and this advice changes nothing that is read from it. A failure is harmless.
        let _ = unsafe { rustix::mm::madvise(memory.as_ptr().cast(), HUGE_BYTES, advice) };
        Ok(Mapping { memory, bytes: HUGE_BYTES })
    }

    /// Maps the first bytes of a file. The caller ensures that the file is never truncated and not written to by other
    /// means.
    pub(crate) fn of_file(file: BorrowedFd<'_>, bytes: usize) -> Result<Mapping, Errno> {
        let (anywhere, shared) = (std::ptr::null_mut(), MapFlags::SHARED);
        // SAFETY: the kernel picks a free range of addresses, so that the mapping aliases nothing.
        let memory = unsafe { rustix::mm::mmap(anywhere, bytes, Mapping::PROTECTION, shared, file, 0)? };
        Ok(Mapping { memory: NonNull::new(memory.cast()).ok_or(Errno::FAULT)?, bytes })
    }

    /// Returns the size of the mapping in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the first address.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.memory
    }

    /// Keeps the memory out of child processes (madvise(2), `MADV_DONTFORK`).
    pub(crate) fn keep_from_children(&self) -> Result<(), Errno> {
        let advice = rustix::mm::Advice::LinuxDontFork;
        // SAFETY: the range is our mapping, and this advice changes nothing that is read from it in this process.
        unsafe { rustix::mm::madvise(self.memory.as_ptr().cast(), self.bytes, advice) }
    }

    /// Disables huge pages for a mapping that is not used yet.
    pub(crate) fn keep_pages_small(&self) -> Result<(), Errno> {
        let advice = rustix::mm::Advice::LinuxNoHugepage;
        // SAFETY: the range is our mapping, and this advice changes nothing that is read from it.
        unsafe { rustix::mm::madvise(self.memory.as_ptr().cast(), self.bytes, advice) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the constructors made this mapping. Its owners are chunks, which are dropped only when none of their
        // buffers is in use: by `trim`, which counts the free buffers; with the pool, which each buffer keeps alive; or
        // with the only buffer of a shared chunk. An io_uring keeps the memory that is registered with it. A mapping outside of pools is dropped with its only buffer.
        let unmapped = unsafe { rustix::mm::munmap(self.memory.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(unmapped, Ok(()), "memory is mapped until it is dropped");
    }
}

/// An owned buffer: `len` bytes of content at a stable address, page-aligned unless [`Buf::advance`] has moved its
/// start.
///
/// The memory is initialised (the kernel maps zeroes), so the full capacity may be written as a slice. Bytes of an
/// earlier user are never part of the content.
pub struct Buf {
    memory: NonNull<u8>,
    len: u32,
    capacity: u32,
    owner: MemoryOwner,
}

/// The owner that receives the memory of a buffer when it is dropped.
enum MemoryOwner {
    Pool {
        class: u8,
        id: BufId,
        pool: Rc<PoolState>,
    },
    /// `None` only while the buffer is dropped or frozen.
    Memfd(Option<Box<shm::ShmChunk>>),
    /// Memory of this buffer alone, outside of pools.
    Own {
        _mapping: Box<Mapping>,
    },
}

impl Buf {
    /// Returns an empty buffer over a complete chunk of shared memory.
    pub(crate) fn of_shared(chunk: Box<shm::ShmChunk>) -> Buf {
        let Mapping { memory, bytes } = *chunk.mapping();
        Buf { memory, len: 0, capacity: bytes as u32, owner: MemoryOwner::Memfd(Some(chunk)) }
    }

    /// Returns an empty buffer outside of pools with room for `bytes`, for a task that must not wait for a buffer. `None`
    /// when the kernel has no memory. Mapping the memory costs more than a buffer of a pool.
    pub fn outside_pools(bytes: u32) -> Option<Buf> {
        let mapping = Box::new(Mapping::anonymous((bytes as usize).next_multiple_of(ALIGNMENT)).ok()?);
        let (memory, capacity) = (mapping.memory, mapping.bytes as u32);
        Some(Buf { memory, len: 0, capacity, owner: MemoryOwner::Own { _mapping: mapping } })
    }

    /// Returns the capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Sets the content to the first `len` bytes.
    ///
    /// # Panics
    /// When `len` is above the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "content of {len} bytes in a buffer of {}", self.capacity());
        self.len = len as u32;
    }

    /// Returns the full capacity, to be written before [`Buf::set_len`].
    pub fn space(&mut self) -> &mut [u8] {
        // SAFETY: the memory is mapped, zeroed once by the kernel, of that length, and ours alone.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.capacity()) }
    }

    /// Returns the space behind the content, to be written before [`Buf::set_len`].
    pub fn spare_capacity(&mut self) -> &mut [u8] {
        let len = self.len as usize;
        &mut self.space()[len..]
    }

    /// Removes `count` bytes from the front: the buffer's content and capacity shrink. The remaining bytes are not
    /// moved, so their address is no longer aligned.
    ///
    /// # Panics
    /// When the content is shorter than `count`.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.len as usize, "{count} bytes off a content of {}", self.len);
        // SAFETY: `count` is at most the length, which is within the memory.
        self.memory = unsafe { self.memory.add(count) };
        self.len -= count as u32;
        self.capacity -= count as u32;
    }

    /// Appends as many of `bytes` as fit and returns their number.
    pub fn append(&mut self, bytes: &[u8]) -> usize {
        let len = self.len as usize;
        let taken = bytes.len().min(self.capacity() - len);
        self.space()[len..len + taken].copy_from_slice(&bytes[..taken]);
        self.len += taken as u32;
        taken
    }

    /// Returns the io_uring fixed-buffer index of this memory, if registered.
    pub(crate) fn fixed_index(&self) -> Option<u16> {
        self.fixed_index_or(|_, _| false)
    }

    /// As [`Buf::fixed_index`]; calls `register` for a chunk that is not registered yet. Shared memory is never
    /// registered: a registration would pin its pages after they are released.
    pub(crate) fn fixed_index_or(&self, register: impl FnOnce(u16, &ChunkMemory) -> bool) -> Option<u16> {
        let MemoryOwner::Pool { id, pool, .. } = &self.owner else { return None };
        let mut chunks = pool.chunks.borrow_mut();
        let chunk = chunks[id.chunk as usize].as_mut()?;
        if !chunk.registered {
            chunk.registered = register(id.chunk, &chunk.memory);
        }
        chunk.registered.then_some(id.chunk)
    }

    /// Makes the content immutable, so that it can be shared. Copies content that is much smaller than its buffer.
    pub fn freeze(mut self) -> SharedBytes {
        let is_sparse = self.len() * 2 < self.capacity();
        if is_sparse || !matches!(self.owner, MemoryOwner::Pool { .. }) {
            return SharedBytes::copy(&self);
        }
        let MemoryOwner::Pool { class, id, pool } =
            std::mem::replace(&mut self.owner, MemoryOwner::Memfd(None))
        else {
            return SharedBytes::copy(&self);
        };
        let chunks = pool.chunks.borrow();
        let chunk = chunks[id.chunk as usize].as_ref().expect("a lent buffer's chunk is mapped");
        let (mapping, free_list) = (Arc::clone(&chunk.memory.mapping), Arc::clone(&pool.returned));
        // Relative to the mapping, because the content may begin behind removed bytes (`advance`).
        let offset = self.memory.addr().get() - chunk.memory.mapping.memory.addr().get();
        SharedBytes::of(SharedSlot { mapping, offset, len: self.len, class, id, free_list })
    }

    /// Returns the address of the content, for the kernel.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory.as_ptr()
    }
}

/// Memory of an immutable buffer; any thread may return it to its pool.
pub(crate) struct SharedSlot {
    mapping: Arc<Mapping>,
    /// Offset in the mapping in bytes.
    offset: usize,
    len: u32,
    class: u8,
    id: BufId,
    free_list: Arc<RemoteFreeList>,
}

impl SharedSlot {
    /// Returns the content.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `Buf::freeze` took the offset from a chunk of this mapping.
        let first = unsafe { self.mapping.memory.add(self.offset) };
        // SAFETY: the memory is mapped and initialised for as long as the mapping is held. `freeze` consumed the only
        // handle that could change it, and its pool does not lend it again before this is dropped and the slot
        // returned.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), self.len as usize) }
    }
}

impl Drop for SharedSlot {
    fn drop(&mut self) {
        self.free_list.put(self.class, self.id);
    }
}

// The support for shared memory does not enlarge a buffer.
const _: () = assert!(size_of::<Buf>() == 32);

impl Drop for Buf {
    fn drop(&mut self) {
        match &mut self.owner {
            MemoryOwner::Pool { class, id, pool } => pool.free[*class as usize].borrow_mut().push(*id),
            MemoryOwner::Memfd(chunk) => chunk.take().into_iter().for_each(shm::put_back),
            MemoryOwner::Own { .. } => {}
        }
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is mapped and initialised, and `set_len` keeps the length inside of it.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len as usize) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len as usize;
        &mut self.space()[..len]
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} of {} bytes)", self.len, self.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returned_buffers_are_reused() {
        let pool = Pool::new(8 << 20);
        let mut buf = pool.get(100).unwrap();
        assert_eq!(buf.capacity(), 4096);
        assert_eq!(buf.append(b"abc"), 3);
        assert_eq!(&*buf, b"abc");
        let address = buf.as_mut_ptr();
        drop(buf);
        assert_eq!(pool.get(4096).unwrap().as_mut_ptr(), address);
    }

    #[test]
    fn allocations_above_the_limit_are_refused_and_counted() {
        let pool = Pool::new(5 << 20);
        let held: Vec<Buf> = (0..4).map(|_| pool.get(1 << 20).unwrap()).collect();
        assert!(pool.get(1 << 20).is_none(), "a quarter is reserved for header sections");
        assert_eq!(pool.counters().exhausted, 1);
        drop(held);
        assert!(pool.get(1 << 20).is_some());
    }

    #[test]
    fn idle_memory_serves_every_size_class_at_the_limit() {
        let pool = Pool::new(4 << 20);
        let mut large: Vec<Buf> = (0..2).map(|_| pool.get(1 << 20).unwrap()).collect();
        let halves = [pool.get(512 << 10).unwrap(), pool.get(300_000).unwrap()];
        let head = pool.get(1).unwrap();
        assert!(pool.get(64 << 10).is_none());
        assert_eq!((pool.spare_bytes(), pool.bytes_max()), ((1 << 20) - 4096, 4 << 20));
        drop((head, large.pop()));
        let small: Vec<Buf> = (0..2 * 256).map(|_| pool.get(4096).unwrap()).collect();
        assert!(small.iter().all(|buf| buf.capacity() == 4096), "idle chunks are divided again");
        let [half, other] = halves;
        drop(half);
        assert_eq!(pool.get(5000).unwrap().capacity(), 512 << 10, "a larger buffer is better than none");
        assert!(pool.get(1).is_none(), "a buffer of the smallest class would occupy it for long");
        drop((other, small, large));
        let large: Vec<Buf> = (0..3).map(|_| pool.get(1 << 20).unwrap()).collect();
        assert_eq!(pool.spare_bytes(), 1 << 20);
        drop(large);
    }

    /// Whichever group allocates first, memory remains for the other.
    #[test]
    fn heads_and_bodies_cannot_use_all_memory() {
        let pool = Pool::new(8 << 20);
        let heads: Vec<Buf> = std::iter::from_fn(|| pool.get(4096)).collect();
        assert_eq!(heads.len(), 6 * 256);
        let bodies: Vec<Buf> = std::iter::from_fn(|| pool.get(256 << 10)).collect();
        assert_eq!(bodies.len(), 2 * 4);
        drop(heads);
        let more: Vec<Buf> = std::iter::from_fn(|| pool.get(128 << 10)).collect();
        assert_eq!(more.len(), 4 * 8);
        let rest: Vec<Buf> = std::iter::from_fn(|| pool.get(16 << 10)).collect();
        assert_eq!(rest.len(), 2 * 64);
        drop((bodies, more, rest));
        pool.trim(|_| true);
        assert_eq!(std::iter::from_fn(|| pool.get(1 << 20)).collect::<Vec<_>>().len(), 6);
    }

    /// A large read gets contiguous memory, and no half of a huge page is wasted.
    #[test]
    fn large_buffers_share_huge_pages() {
        let pool = Pool::new(8 << 20);
        let mut bufs: Vec<Buf> = (0..6).map(|_| pool.get(1 << 20).unwrap()).collect();
        let places: Vec<usize> = bufs.iter_mut().map(|buf| buf.as_mut_ptr().addr()).collect();
        for pair in places.chunks(2) {
            assert!(pair[0].is_multiple_of(HUGE_BYTES) && pair[1] == pair[0] + CHUNK_BYTES, "{places:x?}");
        }
        drop(bufs.split_off(3));
        assert_eq!(pool.trim(|_| true), 2 * CHUNK_BYTES);
        drop(bufs);
        assert_eq!(pool.trim(|_| true), 4 * CHUNK_BYTES);
        assert_eq!(pool.counters(), PoolCounters::default());
    }

    #[test]
    fn trim_releases_only_idle_chunks() {
        let pool = Pool::new(8 << 20);
        let kept = pool.get(4096).unwrap();
        drop(pool.get(64 << 10));
        assert_eq!(pool.trim(|_| true), CHUNK_BYTES);
        assert_eq!(pool.counters().bytes, CHUNK_BYTES as u64);
        assert!(kept.fixed_index_or(|_, _| true).is_some());
        drop(kept);
        assert_eq!(pool.trim(|_| false), 0, "a chunk that the ring holds stays");
        assert_eq!(pool.trim(|_| true), CHUNK_BYTES);
        assert_eq!(pool.counters(), PoolCounters::default());
    }

    #[test]
    fn a_buffer_outside_pools_has_its_own_memory() {
        let mut buf = Buf::outside_pools(5000).unwrap();
        assert_eq!((buf.capacity(), buf.len()), (8192, 0));
        assert_eq!(buf.append(&[7; 9000]), 8192);
        assert!(buf.fixed_index_or(|_, _| true).is_none());
        buf.advance(1);
        let frozen = buf.freeze();
        assert_eq!(*frozen, [7; 8191]);
    }

    #[test]
    fn a_buffer_may_outlive_its_pool() {
        let pool = Pool::new(8 << 20);
        let mut buf = pool.get(10).unwrap();
        drop(pool);
        assert_eq!(buf.append(&[7; 5000]), 4096);
        assert_eq!(buf[4095], 7);
    }
}
