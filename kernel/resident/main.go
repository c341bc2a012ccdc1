// Command resident has a notebook's kernel and the processes beside it.
//
//	resident kernel CONNECTION_FILE ROOT   start the notebook's process, then become GoNB
//	resident with COMMAND [ARGUMENTS]      likewise, then become another command, such as a cell's program
//	resident cell FILE                     run a cell's program that was built before
//	resident notebook                      be the notebook's process: values, charts, and processes with devices
//	resident devices                       be a process with devices
//
// Started under the name go it is a kernel's go command.
//
// The last two serve the socket that they are given as file descriptor 3, and end when the one that started them has.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	_ "github.com/shardbook/shardbook/lib/flash" // whose kernels cells call
	_ "github.com/shardbook/shardbook/lib/fused" // likewise
	"github.com/shardbook/shardbook/lib/resident"
	"github.com/shardbook/shardbook/lib/xla"
)

func main() {
	do := run
	if isGo() {
		do = becomeGo
	}
	if err := do(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "shardbook:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "kernel":
		return becomeKernel(args[1], args[2])
	case len(args) > 1 && args[0] == "with":
		return becomeCommand(args[1:])
	case len(args) > 1 && args[0] == "cell":
		return runRelocated(args[1], args[2:])
	case len(args) == 1 && args[0] == "notebook":
		return serveNotebook()
	case len(args) == 1 && args[0] == "devices":
		return serveDevices()
	}
	return fmt.Errorf("arguments %q: this program is started by JupyterLab, see `shardbook lab`", args)
}

// inherited returns the socket that this process was given.
func inherited() (*net.UnixListener, error) {
	file := os.NewFile(3, "socket")
	defer file.Close()
	l, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("no socket was given: %w", err)
	}
	socket, ok := l.(*net.UnixListener)
	if !ok {
		return nil, fmt.Errorf("the socket that was given is a %T", l)
	}
	return socket, nil
}

// serveDevices serves devices until standard input ends, which the notebook's process holds open.
func serveDevices() error {
	// A cell that is interrupted ends; what it has started here is handled when its connection ends.
	signal.Ignore(os.Interrupt)
	socket, err := inherited()
	if err != nil {
		return err
	}
	s := &resident.Server{Stuck: func() {
		fmt.Fprintln(os.Stderr, "a program that was interrupted did not end, which only ending the process can do")
		os.Exit(1)
	}}
	if err := xla.Lend(s); err != nil {
		return err
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		syscall.Kill(os.Getpid(), syscall.SIGKILL) // whatever runs
	}()
	return s.Serve(socket)
}
