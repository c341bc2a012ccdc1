//go:build !resident

package collective

/*
#cgo CFLAGS: -O3
#include <stdint.h>
void *shardbook_meet_all_reduce(void *);
void *shardbook_meet_all_gather(void *);
void *shardbook_meet_reduce_scatter(void *);
void *shardbook_meet_all_to_all(void *);
void *shardbook_meet_permute(void *);
void *shardbook_meet_all_to_all_v(void *);
void shardbook_meet_patience(int64_t);
static void *address(int i) {
	void *all[] = {shardbook_meet_all_reduce, shardbook_meet_all_gather, shardbook_meet_reduce_scatter,
		shardbook_meet_all_to_all, shardbook_meet_permute, shardbook_meet_all_to_all_v};
	return all[i];
}
*/
import "C"

import (
	"time"
	"unsafe"

	_ "github.com/shardbook/shardbook/internal/half"   // whose header collective.c includes
	_ "github.com/shardbook/shardbook/lib/xla/foreign" // likewise
)

func address(kind int) unsafe.Pointer { return C.address(C.int(kind)) }

// Limit is how long devices wait for each other before it is an error.
const Limit = 120 * time.Second

// Wait sets another limit, for tests.
func Wait(limit time.Duration) { C.shardbook_meet_patience(C.int64_t(limit.Milliseconds())) }
