// Package testkernel has small kernels for the tests of lib/xla, in C, which a test's own files cannot have.
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

// Part is how many elements a kernel's threads take at a time.
const Part = 64

// Affine and Parabola take x, of any shape, and the numbers factor and offset, all float32. They give, of x's shape,
// factor·x + offset and factor·x² + offset, and the sums of each Part elements of that in row-major order and of what
// is left, perhaps nothing. A factor that is not a number is an error.
var (
	Affine   = xla.NewKernel("shardbook_test_affine", C.affine_address())
	Parabola = xla.NewKernel("shardbook_test_parabola", C.parabola_address())
)

// Calls returns how many times programs have called the kernels.
func Calls() int { return int(C.shardbook_test_calls()) }

// A Frame is how XLA calls a kernel, in one respect, made by hand.
type Frame int

// Where the structs of a call, or what they hold, are not as foreign.h has them; Sound is a call in which all are.
const (
	Sound Frame = iota
	ShortFrame
	LongOperands
	LongResults
	ShortArray
	NoArray
	VersionOfShortAPI // asks for the version, as the following do
	VersionOfNewAPI
	VersionOfShortFrame
	Version
)

// Say calls Affine and returns the error's text, or, of a question for its version, the major number that it answers.
func (f Frame) Say() string { return C.GoString(C.shardbook_test_frame(C.int(f))) }
