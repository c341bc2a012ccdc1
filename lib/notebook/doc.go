// Package notebook adds to Go notebook cells: values that later cells can read, parameters set from outside, and
// progress bars.
//
// The gonb kernel compiles every cell and runs it as a process of its own, so cells share declarations but no memory.
// Beside the kernel there are processes that stay, with kept values and devices.
//
//   - [Keep] and [Kept] carry values, GoMLX tensors among them, from one cell to a later one.
//   - [Param] reads a parameter that the person who runs the notebook may set; [ParamNames] finds those a notebook
//     reads.
//   - [Progress] and [Bar] show how far a loop has come, in place.
//
// Outside a notebook, in a program or in a test, all three do the same with the process's own memory and terminal.
package notebook
