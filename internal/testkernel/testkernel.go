// Package testkernel has small C kernels for the tests of lib/xla, since test files cannot use cgo.
package testkernel

/*
#cgo CFLAGS: -O2
void *shardbook_test_affine(void *);
void *shardbook_test_parabola(void *);
long long shardbook_test_calls(void);
const char *shardbook_test_frame(int);
static void *affine_address(void) { return shardbook_test_affine; }
static void *parabola_address(void) { return shardbook_test_parabola; }
*/
import "C"

import (
	"github.com/shardbook/shardbook/lib/xla"
	_ "github.com/shardbook/shardbook/lib/xla/foreign" // whose header affine.c includes
)

// Part is the number of elements that a kernel's thread computes at a time.
const Part = 64

// Affine and Parabola take x of any shape, and two numbers, factor and offset, all float32. They return factor·x +
// offset and factor·x² + offset in x's shape, and the sums of each Part elements of that (row-major; the last part may
// be smaller or empty). A NaN factor is an error.
var (
	Affine   = xla.NewKernel("shardbook_test_affine", C.affine_address())
	Parabola = xla.NewKernel("shardbook_test_parabola", C.parabola_address())
)

// Calls returns how many times programs have called the kernels.
func Calls() int { return int(C.shardbook_test_calls()) }

// Frame is a hand-made call of a kernel with one difference from XLA's structs in foreign.h.
type Frame int

// The differences; Sound has none.
const (
	Sound Frame = iota
	ShortFrame
	LongOperands
	LongResults
	ShortArray
	NoArray
	VersionOfShortAPI // this one and the following ask for the version
	VersionOfNewAPI
	VersionOfShortFrame
	Version
)

// Say calls Affine and returns the text of its error, or the major version that it answers.
func (f Frame) Say() string { return C.GoString(C.shardbook_test_frame(C.int(f))) }
