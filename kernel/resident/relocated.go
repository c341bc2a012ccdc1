package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"syscall"
)

// relocated is a program whose source was in other lines of main.go when it was built.
type relocated struct {
	Program string
	Lines   [][2]int // first lines of declarations, then and now, sorted
}

// write writes a file that runs the program: a script of this one.
func (r relocated) write(path, self string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(path, fmt.Appendf(nil, "#!%s cell\n%s\n", self, text), 0o700)
}

// runRelocated runs a file that write has written, with the lines in what it prints to standard error as they are now.
func runRelocated(path string, args []string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var r relocated
	if err := json.Unmarshal(text[slices.Index(text, '\n')+1:], &r); err != nil {
		return err
	}
	cmd := exec.Command(r.Program, args...)
	cmd.Args[0] = path
	cmd.Stdin, cmd.Stdout = os.Stdin, os.Stdout
	runtime.LockOSThread() // the program ends with the thread that started it
	cmd.SysProcAttr = endWithParent()
	messages, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	r.correct(os.Stderr, messages)
	err = cmd.Wait()
	if ended, ok := err.(*exec.ExitError); ok {
		if ended.ExitCode() < 0 { // a signal
			os.Exit(2)
		}
		os.Exit(ended.ExitCode())
	}
	return err
}

// inMain matches a line of the program in a message.
var inMain = regexp.MustCompile(`main\.go:(\d+)`)

// correct copies messages, line by line.
func (r relocated) correct(to io.Writer, from io.Reader) {
	in := bufio.NewReader(from)
	for {
		line, err := in.ReadBytes('\n')
		_, _ = to.Write(inMain.ReplaceAllFunc(line, func(match []byte) []byte {
			was, _ := strconv.Atoi(string(match[len("main.go:"):]))
			return fmt.Appendf(nil, "main.go:%d", r.now(was))
		}))
		if err != nil {
			return
		}
	}
}

// now returns where a line of then is.
func (r relocated) now(line int) int {
	for _, moved := range slices.Backward(r.Lines) {
		if moved[0] <= line {
			return line - moved[0] + moved[1]
		}
	}
	return line
}
