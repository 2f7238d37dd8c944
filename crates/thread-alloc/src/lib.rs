//! The program's allocator: a cache of freed blocks per worker thread in front of the C library's allocator.
//!
//! The C library's own thread cache has seven blocks per size and none above 1032 bytes. Requests are handled in
//! event-loop turns of dozens. All of them allocate blocks of the same sizes and free them later, and their futures
//! have several KiB. Without this cache, most blocks take the C library's slow path, which merges and splits
//! neighbouring blocks.
//!
//! ```text
//!   alloc   --> list of the class --(is empty)--> C library
//!   dealloc --> list of the class --(is full)---> C library
//! ```
//! A block always has the size of its class, so any thread may free a block of another thread. The class follows from
//! the [`Layout`], so blocks have no header. Threads that have not called [`enable`] have no lists.
//!
//! Crates of the workspace that it may use: none.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;

/// The allocator, for `#[global_allocator]`; see the module documentation.
pub struct ThreadCachingAlloc;

/// Maximum size in bytes of a cached block. Futures of requests are smaller. Larger blocks are mostly buffers, which
/// have pools of their own.
const BYTES_MAX: usize = 4096;

/// Maximum number of bytes of one class that one thread caches: 32 blocks of 4 KiB. The lists of a thread together
/// contain at most 8 MiB.
const KEPT_BYTES_MAX: usize = 128 << 10;

/// Maximum number of cached blocks of one class: as many as four event-loop turns with 64 requests each free.
const KEPT_MAX: usize = 256;

/// Largest block in bytes of the classes that are 16 bytes apart, as in the C library.
const SMALL_MAX: usize = 1032;

/// Distance in bytes between classes up to [`SMALL_MAX`]. Their sizes are 8 bytes above a multiple of 16: with the 8
/// bytes of the C library's own header, a block fills its chunk.
const SMALL_STEP: usize = 16;

/// Distance in bytes between classes above [`SMALL_MAX`].
const LARGE_STEP: usize = 256;

/// Number of classes up to [`SMALL_MAX`]. The first class is not used, since its blocks would have 8 bytes.
const SMALL_CLASSES: usize = SMALL_MAX / SMALL_STEP + 1;

/// Number of all classes.
const CLASSES: usize = SMALL_CLASSES + (BYTES_MAX - SMALL_MAX).div_ceil(LARGE_STEP);

/// The alignment of the C library's blocks.
const ALIGN_MAX: usize = 16;

const _: () = assert!(class_of(SMALL_MAX) == SMALL_CLASSES - 1 && class_of(SMALL_MAX + 1) == SMALL_CLASSES);
const _: () = assert!(class_of(BYTES_MAX) == CLASSES - 1 && bytes_of(CLASSES - 1) >= BYTES_MAX);
const _: () = assert!(class_of(1) == 1 && bytes_of(1) >= ALIGN_MAX);

/// Enables the cache of this thread.
pub fn enable() {
    KEPT.with(|kept| {
        for (class, list) in kept.iter().enumerate() {
            list.count_max.set((KEPT_BYTES_MAX / bytes_of(class)).min(KEPT_MAX));
        }
    });
}

/// Frees the blocks that this thread caches; returns the number of bytes. The cache stays enabled.
pub fn trim() -> usize {
    KEPT.with(|kept| kept.iter().enumerate().map(|(class, list)| list.empty(class)).sum())
}

/// Makes the C library return completely free pages of all threads to the system (malloc_trim(3), glibc only). It scans
/// all free blocks, so it is meant for use after many blocks were freed.
pub fn release_pages() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes no pointers, and moves or frees no block that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Disables the cache of this thread and frees its blocks.
pub fn disable() {
    KEPT.with(|kept| kept.iter().for_each(|list| list.count_max.set(0)));
    trim();
}

thread_local! {
    /// The type has no destructor, so the lists are usable as long as the thread runs.
    static KEPT: [List; CLASSES] = const { [const { List::new() }; CLASSES] };
}

/// The cached blocks of one class as a linked list: each block begins with the address of the next.
struct List {
    first: Cell<*mut u8>,
    count: Cell<usize>,
    count_max: Cell<usize>,
}

impl List {
    const fn new() -> List {
        List { first: Cell::new(ptr::null_mut()), count: Cell::new(0), count_max: Cell::new(0) }
    }

    /// Removes and returns a block, or null if the list is empty.
    fn take(&self) -> *mut u8 {
        let block = self.first.get();
        if !block.is_null() {
            // SAFETY: `put` has written the address of the next block there, and the block has not been handed out
            // since.
            self.first.set(unsafe { block.cast::<*mut u8>().read() });
            self.count.set(self.count.get() - 1);
        }
        block
    }

    /// Adds a block; returns `false` if the list is full.
    ///
    /// # Safety
    /// `block` is a block of this list's class that is no longer used.
    unsafe fn put(&self, block: *mut u8) -> bool {
        if self.count.get() >= self.count_max.get() {
            return false;
        }
        // SAFETY: the block has no owner, its class has room for an address, and it is aligned to 16 bytes.
        unsafe { block.cast::<*mut u8>().write(self.first.get()) };
        self.first.set(block);
        self.count.set(self.count.get() + 1);
        true
    }

    /// Frees all blocks of the list; returns their total size in bytes.
    fn empty(&self, class: usize) -> usize {
        let bytes = self.count.get() * bytes_of(class);
        loop {
            let block = self.take();
            if block.is_null() {
                return bytes;
            }
            // SAFETY: a block of a list is from `System`, by the layout of its class.
            unsafe { System.dealloc(block, layout_of(class)) };
        }
    }
}

/// Returns the class of blocks with room for this many bytes, at most [`BYTES_MAX`].
const fn class_of(bytes: usize) -> usize {
    match bytes {
        0..ALIGN_MAX => 1,
        ALIGN_MAX..=SMALL_MAX => (bytes + SMALL_STEP / 2 - 1) / SMALL_STEP,
        _ => SMALL_CLASSES + (bytes - SMALL_MAX - 1) / LARGE_STEP,
    }
}

/// Returns the block size of a class in bytes.
const fn bytes_of(class: usize) -> usize {
    match class {
        0..SMALL_CLASSES => class * SMALL_STEP + SMALL_STEP / 2,
        _ => SMALL_MAX + (class - SMALL_CLASSES + 1) * LARGE_STEP,
    }
}

/// Returns the class of a layout; `None` if no class fits it.
const fn listed(layout: Layout) -> Option<usize> {
    if layout.size() > BYTES_MAX || layout.align() > ALIGN_MAX {
        return None;
    }
    Some(class_of(layout.size()))
}

/// Returns the layout that blocks of a class have in the C library's allocator.
const fn layout_of(class: usize) -> Layout {
    // SAFETY: the alignment is a power of two, and the size is far below the limit of a layout.
    unsafe { Layout::from_size_align_unchecked(bytes_of(class), ALIGN_MAX) }
}

// SAFETY: a block of a class is at least as long as every layout of that class and aligned for it. It is allocated and
// freed through `System` by the class's own layout. It is in one list or with one owner: `take` unlinks the returned
// block, and `put` gets a block from its owner. Nothing here panics or allocates.
unsafe impl GlobalAlloc for ThreadCachingAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = listed(layout) else {
            // SAFETY: the caller's own request.
            return unsafe { System.alloc(layout) };
        };
        match KEPT.with(|kept| kept[class].take()) {
            // SAFETY: the size of a class is not zero.
            block if block.is_null() => unsafe { System.alloc(layout_of(class)) },
            block => block,
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(class) = listed(layout) else {
            // SAFETY: the caller's own request.
            return unsafe { System.alloc_zeroed(layout) };
        };
        let block = KEPT.with(|kept| kept[class].take());
        if block.is_null() {
            // SAFETY: the size of a class is not zero.
            return unsafe { System.alloc_zeroed(layout_of(class)) };
        }
        // SAFETY: a block has room for every layout of its class, and no other owner.
        unsafe { block.write_bytes(0, layout.size()) };
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(class) = listed(layout) else {
            // SAFETY: a block without a class is from `System` by this layout.
            return unsafe { System.dealloc(block, layout) };
        };
        // SAFETY: the caller allocated the block with this layout and gives it up, so it is one of this class.
        if !KEPT.with(|kept| unsafe { kept[class].put(block) }) {
            // SAFETY: a block of a class is from `System` by the layout of the class.
            unsafe { System.dealloc(block, layout_of(class)) };
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller answers for the new size, and the alignment is that of a layout.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (listed(layout), listed(wanted)) {
            (Some(class), Some(new)) if class == new => return block,
            // SAFETY: a block without a class is from `System` by this layout, and the new one has none either.
            (None, None) => return unsafe { System.realloc(block, layout, size) },
            _ => {}
        }
        // SAFETY: the caller guarantees that the new size is not zero.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: both blocks have room for the shorter of both lengths, and the new one has no other owner.
            unsafe { ptr::copy_nonoverlapping(block, moved, layout.size().min(size)) };
            // SAFETY: the caller gives up the old block.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_has_the_smallest_fitting_class() {
        for bytes in 1..=BYTES_MAX {
            let class = class_of(bytes);
            assert!(bytes_of(class) >= bytes, "{bytes}");
            assert!(class <= 1 || bytes_of(class - 1) < bytes, "{bytes} bytes fit a smaller class");
        }
    }

    #[test]
    fn layouts_without_a_free_list_use_the_c_library() {
        let layout = |size, align| Layout::from_size_align(size, align).expect("a layout");
        assert_eq!(listed(layout(BYTES_MAX + 1, 8)), None);
        assert_eq!(listed(layout(64, 32)), None);
        assert!(listed(layout(BYTES_MAX, 16)).is_some());
    }

    /// A block of a test, filled with a byte value.
    struct Held {
        block: *mut u8,
        layout: Layout,
        mark: u8,
    }

    // SAFETY: the block has no other owner.
    unsafe impl Send for Held {}

    impl Held {
        fn new(size: usize, mark: u8) -> Held {
            let layout = Layout::from_size_align(size, 8).expect("a layout");
            // SAFETY: the size is not zero.
            let block = unsafe { ThreadCachingAlloc.alloc(layout) };
            assert!(!block.is_null() && block.addr() % ALIGN_MAX == 0);
            // SAFETY: it has room for the layout.
            unsafe { block.write_bytes(mark, size) };
            Held { block, layout, mark }
        }

        fn check(&self, len: usize) {
            // SAFETY: the block has at least `len` bytes, and they were written.
            let bytes = unsafe { std::slice::from_raw_parts(self.block, len) };
            assert!(bytes.iter().all(|&byte| byte == self.mark), "another owner has written to the block");
        }

        fn resize(&mut self, size: usize) {
            let kept = self.layout.size().min(size);
            // SAFETY: the block was allocated with this layout, and the size is not zero.
            self.block = unsafe { ThreadCachingAlloc.realloc(self.block, self.layout, size) };
            self.layout = Layout::from_size_align(size, 8).expect("a layout");
            self.check(kept);
            // SAFETY: it has room for the layout.
            unsafe { self.block.write_bytes(self.mark, size) };
        }

        fn end(self) {
            self.check(self.layout.size());
            // SAFETY: the block was allocated with this layout, and is not used any more.
            unsafe { ThreadCachingAlloc.dealloc(self.block, self.layout) };
        }
    }

    /// Sizes of all kinds, from a deterministic generator.
    fn sizes() -> impl Iterator<Item = usize> {
        let mut state = 1u32;
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let max = [40, 300, 1200, 5000][(state >> 30) as usize];
            (state >> 8) as usize % max + 1
        })
    }

    #[test]
    fn a_block_is_never_allocated_twice() {
        enable();
        let mut held: Vec<Held> = Vec::new();
        for (index, size) in sizes().take(20_000).enumerate() {
            match index % 5 {
                0..3 => held.push(Held::new(size, index as u8)),
                3 => held[size % (index / 5 + 1)].resize(size),
                _ => held.swap_remove(size % held.len()).end(),
            }
        }
        held.into_iter().for_each(Held::end);
        disable();
        assert_eq!(trim(), 0);
    }

    #[test]
    fn reused_blocks_are_zeroed_on_request() {
        enable();
        Held::new(100, 7).end();
        let layout = Layout::from_size_align(97, 1).expect("a layout");
        // SAFETY: the size is not zero.
        let block = unsafe { ThreadCachingAlloc.alloc_zeroed(layout) };
        Held { block, layout, mark: 0 }.end();
        assert_eq!(trim(), bytes_of(class_of(97)));
        disable();
    }

    #[test]
    fn free_lists_retain_at_most_their_limit() {
        enable();
        let held: Vec<Held> = (0..2 * KEPT_MAX).map(|_| Held::new(500, 1)).collect();
        held.into_iter().for_each(Held::end);
        assert_eq!(trim() / bytes_of(class_of(500)), KEPT_MAX);
        disable();
    }

    #[test]
    fn threads_free_blocks_of_other_threads() {
        enable();
        let held: Vec<Held> = sizes().take(1000).map(|size| Held::new(size, 3)).collect();
        std::thread::spawn(move || held.into_iter().for_each(Held::end)).join().expect("it ends");
        assert_eq!(trim(), 0);
        disable();
    }
}
