// Package collective has collectives between XLA's CPU devices of a process, in C. collective.c has how devices meet;
// move.h what is done with their arrays.
package collective

import "unsafe"

var names = []string{"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "all_to_all_v"}

// Kernel returns the kernel for a kind of collective, in the order of xla.CollectiveKind.
func Kernel(kind int) (name string, handler unsafe.Pointer) {
	return "shardbook_meet_" + names[kind], address(kind)
}
