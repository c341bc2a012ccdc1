#include <stddef.h>

// memory_keep has a library allocate large blocks that stay mapped after they are freed. It returns 0, and changes
// nothing, where that is not possible.
int memory_keep(void *library);

// memory_share makes memory that other processes can map, from which blocks are then taken, small ones too. Call it before
// memory_keep. It returns the file's descriptor, or -1 where that is not possible, and where the memory is.
int memory_share(char **at);

// memory_free unmaps the blocks that are not in use.
void memory_free(void);

// memory_sizes are the bytes of the blocks in use and of those that are kept.
void memory_sizes(size_t *in_use, size_t *kept);
