//go:build !resident

// Large blocks for a plugin, which stay mapped after they are freed. XLA allocates a program's buffers for every run, and
// by default glibc gives blocks of such sizes back to the operating system, which maps and zeroes fresh pages for the
// next run: a quarter of a training step's processor time.
//
// The plugin has no option for an allocator, but it calls its C library through a table of addresses that is its own:
// memory_keep replaces two of them there. So nothing else in the process changes.
#define _GNU_SOURCE
#include "memory.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#if defined(__linux__) && defined(__LP64__)
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	LARGE = 1 << 20,         // bytes from which a block is ours
	HUGE_BLOCK = 32 << 20,   // from which it is made of huge pages, if there are any
	HUGE_PAGE = 2 << 20,
	PAGE = 4096,             // what plugins align to at most
	LEAST = 6, CHUNK = 20,   // bits of the smallest of the small blocks, and of what they are cut from
};

// Memory that other processes map too (memory_share). All blocks are there, small ones also, at addresses that are used
// once, of which there are plenty.
#define SHARED ((size_t)1 << 40)
static char *shared; // NULL: there is none
static size_t shared_next;
static uint8_t chunk_bits[SHARED >> CHUNK]; // of the small blocks in a chunk; 0: it has none

// take returns the next addresses of the shared memory, or NULL if they are used up.
static char *take(size_t size, size_t alignment) {
	size_t start = (shared_next + alignment - 1) / alignment * alignment;
	if (start > SHARED || size > SHARED - start) return NULL;
	shared_next = start + size;
	return shared + start;
}

typedef struct {
	char *at;
	size_t size;
	uint64_t freed; // when, in calls; 0: in use
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block *blocks;
static size_t count, room;
static size_t used, unused, most; // bytes: in use, kept, and the most that were in use at a time
static uint64_t calls;
static uintptr_t lowest = UINTPTR_MAX, highest; // addresses of all blocks that there have been

// unmap removes a block that is not in use.
static void unmap(size_t i) {
	if (shared) madvise(blocks[i].at, blocks[i].size, MADV_REMOVE);
	else munmap(blocks[i].at, blocks[i].size);
	unused -= blocks[i].size;
	blocks[i] = blocks[--count];
}

// shrink unmaps blocks, those freed first first, until no more than `keep` bytes are kept.
static void shrink(size_t keep) {
	while (unused > keep) {
		size_t oldest = count;
		for (size_t i = 0; i < count; i++)
			if (blocks[i].freed && (oldest == count || blocks[i].freed < blocks[oldest].freed)) oldest = i;
		unmap(oldest);
	}
}

// limit keeps the process from having more than a sixteenth above the most that was in use at a time.
static void limit(void) {
	if (used > most) most = used;
	size_t all = most + most / 16;
	shrink(all - used);
}

static block *map(size_t size) {
	if (count == room) {
		size_t more = room ? 2 * room : 64;
		block *grown = realloc(blocks, more * sizeof *blocks);
		if (!grown) return NULL;
		blocks = grown, room = more;
	}
	int huge = size >= HUGE_BLOCK;
	if (shared) {
		char *at = take(size, huge ? HUGE_PAGE : PAGE);
		if (!at) return NULL;
		blocks[count] = (block){at, size, 0};
		return blocks + count++;
	}
	size_t extra = huge ? HUGE_PAGE : 0;
	char *at = mmap(NULL, size + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED) return NULL;
	if (huge) { // from a huge page's border
		size_t before = -(uintptr_t)at % HUGE_PAGE;
		if (before) munmap(at, before);
		if (before < extra) munmap(at + before + size, extra - before);
		at += before;
		madvise(at, size, MADV_HUGEPAGE);
	}
	if ((uintptr_t)at < lowest) __atomic_store_n(&lowest, (uintptr_t)at, __ATOMIC_RELAXED);
	if ((uintptr_t)at > highest) __atomic_store_n(&highest, (uintptr_t)at, __ATOMIC_RELAXED);
	blocks[count] = (block){at, size, 0};
	return blocks + count++;
}

// Small blocks of the shared memory have a power of two of bytes; free ones are in lists, with the next one's address in
// them.
static void *small_free[CHUNK];

static void *small_block(size_t alignment, size_t size) {
	int bits = LEAST;
	while ((size_t)1 << bits < size || (size_t)1 << bits < alignment) bits++;
	pthread_mutex_lock(&lock);
	if (!small_free[bits]) {
		char *chunk = take(1 << CHUNK, 1 << CHUNK);
		if (chunk) chunk_bits[(chunk - shared) >> CHUNK] = bits;
		for (size_t at = chunk ? 1 << CHUNK : 0; at > 0;) {
			at -= (size_t)1 << bits;
			*(void **)(chunk + at) = small_free[bits];
			small_free[bits] = chunk + at;
		}
	}
	void *found = small_free[bits];
	if (found) small_free[bits] = *(void **)found;
	pthread_mutex_unlock(&lock);
	return found;
}

static void small_release(void *p, int bits) {
	pthread_mutex_lock(&lock);
	*(void **)p = small_free[bits];
	small_free[bits] = p;
	pthread_mutex_unlock(&lock);
}

static int allocate(void **to, size_t alignment, size_t size) {
	if (shared && size <= LARGE / 2 && alignment <= PAGE && (*to = small_block(alignment, size))) return 0;
	if (size < LARGE && !shared || alignment > PAGE || size > SIZE_MAX / 2) return posix_memalign(to, alignment, size);
	size = (size + PAGE - 1) / PAGE * PAGE;
	pthread_mutex_lock(&lock);
	block *best = NULL; // the smallest that is large enough, and not much larger, since it may be in use for long
	for (size_t i = 0; i < count; i++)
		if (blocks[i].freed && blocks[i].size >= size && blocks[i].size / 2 < size && (!best || blocks[i].size < best->size))
			best = blocks + i;
	if (best) {
		unused -= best->size;
		used += best->size;
		best->freed = 0;
	} else {
		used += size;
		limit(); // before there is more
		best = map(size);
		if (!best) {
			used -= size;
			shrink(0);
		}
	}
	if (best) *to = best->at;
	pthread_mutex_unlock(&lock);
	return best ? 0 : posix_memalign(to, alignment, size);
}

static void release(void *p) {
	uintptr_t at = (uintptr_t)p;
	if (shared && at - (uintptr_t)shared < SHARED) {
		int bits = chunk_bits[(at - (uintptr_t)shared) >> CHUNK];
		if (bits) return small_release(p, bits);
	}
	if (at % PAGE || at < __atomic_load_n(&lowest, __ATOMIC_RELAXED) || at > __atomic_load_n(&highest, __ATOMIC_RELAXED)) {
		free(p);
		return;
	}
	pthread_mutex_lock(&lock);
	block *found = NULL;
	for (size_t i = 0; i < count && !found; i++)
		if (blocks[i].at == p && !blocks[i].freed) found = blocks + i;
	if (found) {
		found->freed = ++calls;
		used -= found->size;
		unused += found->size;
		limit();
	}
	pthread_mutex_unlock(&lock);
	if (!found) free(p);
}

#ifdef __x86_64__
enum { CALLED = R_X86_64_JUMP_SLOT, TAKEN = R_X86_64_GLOB_DAT };
#elif defined(__aarch64__)
enum { CALLED = R_AARCH64_JUMP_SLOT, TAKEN = R_AARCH64_GLOB_DAT };
#else
enum { CALLED = -1, TAKEN = -1 };
#endif

// place is an entry of a library's table, and what to write there.
typedef struct { void **at; void *function; } place;

// find lists the entries of a table of relocations for the two functions. It returns how many there are.
static size_t find(const struct link_map *map, const ElfW(Rela) *table, size_t bytes, const ElfW(Sym) *symbols, const char *names,
		place *to, size_t n, size_t most) {
	for (size_t i = 0; i < bytes / sizeof *table; i++) {
		uint32_t type = ELF64_R_TYPE(table[i].r_info);
		if (type != CALLED && type != TAKEN) continue;
		const char *name = names + symbols[ELF64_R_SYM(table[i].r_info)].st_name;
		void *by = !strcmp(name, "posix_memalign") ? (void *)allocate : !strcmp(name, "free") ? (void *)release : NULL;
		if (by && n < most) to[n++] = (place){(void **)(map->l_addr + table[i].r_offset), by};
	}
	return n;
}

int memory_keep(void *library) {
	struct link_map *map;
	if (dlinfo(library, RTLD_DI_LINKMAP, &map)) return 0;
	const ElfW(Rela) *calls = NULL, *data = NULL;
	const ElfW(Sym) *symbols = NULL;
	const char *names = NULL;
	size_t call_bytes = 0, data_bytes = 0;
	for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) switch (d->d_tag) {
		case DT_JMPREL: calls = (void *)d->d_un.d_ptr; break;
		case DT_PLTRELSZ: call_bytes = d->d_un.d_val; break;
		case DT_RELA: data = (void *)d->d_un.d_ptr; break;
		case DT_RELASZ: data_bytes = d->d_un.d_val; break;
		case DT_SYMTAB: symbols = (void *)d->d_un.d_ptr; break;
		case DT_STRTAB: names = (void *)d->d_un.d_ptr; break;
		case DT_PLTREL: if (d->d_un.d_val != DT_RELA) return 0;
		}
	if (!symbols || !names) return 0;
	place places[16];
	size_t n = 0;
	if (calls) n = find(map, calls, call_bytes, symbols, names, places, n, 16);
	if (data) n = find(map, data, data_bytes, symbols, names, places, n, 16);
	int allocates = 0, frees = 0;
	for (size_t i = 0; i < n; i++) *(places[i].function == (void *)allocate ? &allocates : &frees) = 1;
	if (!allocates || !frees || n == 16) return 0;
	size_t page = sysconf(_SC_PAGESIZE);
	for (size_t pass = 0; pass < 2; pass++) // frees first: it must know what allocates gives
		for (size_t i = 0; i < n; i++) {
			if ((places[i].function == (void *)allocate) != pass) continue;
			void *start = (void *)((uintptr_t)places[i].at / page * page);
			// Some of the table may be read-only after loading; that it is writable afterwards does no harm.
			if (mprotect(start, page, PROT_READ | PROT_WRITE)) return 0;
			__atomic_store_n(places[i].at, places[i].function, __ATOMIC_SEQ_CST);
		}
	return 1;
}

int memory_share(char **at) {
	int fd = memfd_create("shardbook", MFD_CLOEXEC);
	if (fd < 0) return -1;
	void *mapped = ftruncate(fd, SHARED) ? MAP_FAILED
		: mmap(NULL, SHARED, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (mapped == MAP_FAILED) {
		close(fd);
		return -1;
	}
	lowest = (uintptr_t)mapped, highest = lowest + SHARED;
	*at = shared = mapped;
	return fd;
}

void memory_free(void) {
	pthread_mutex_lock(&lock);
	shrink(0);
	most = used;
	pthread_mutex_unlock(&lock);
}

void memory_sizes(size_t *in_use, size_t *kept) {
	pthread_mutex_lock(&lock);
	*in_use = used, *kept = unused;
	pthread_mutex_unlock(&lock);
}
#else
int memory_keep(void *library) { return 0; }
int memory_share(char **at) { return -1; }
void memory_free(void) {}
void memory_sizes(size_t *in_use, size_t *kept) { *in_use = *kept = 0; }
#endif
