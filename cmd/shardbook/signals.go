package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// usualGrace is the default time in which a command must end after a signal: less than the ten seconds of docker stop,
// and more than most steps take. XLA cannot be interrupted while it compiles or computes.
const usualGrace = 5 * time.Second

// sameSignal is the time within which a repeated signal counts as the same: timeout, for example, sends two.
const sameSignal = 200 * time.Millisecond

// signalWatch ends the process on signals. The first signal ends the command's context, so that most commands clean up
// and end; the process exits when the grace time is over, or at the second signal. SIGUSR1 has no time limit: mpirun
// forwards it to all ranks, while on other signals it kills ranks that do not end at once.
type signalWatch struct {
	mu      sync.Mutex
	grace   time.Duration
	saving  sync.WaitGroup // writes under way, which must not be interrupted
	hushed  bool           // print nothing at the end
	last    func()         // is called before the process is ended; nil is nothing
	exit    func(status int)
	message io.Writer
}

// signals are those of this process.
var signals = newSignalWatch(os.Stderr, os.Exit)

func newSignalWatch(message io.Writer, exit func(status int)) *signalWatch {
	return &signalWatch{grace: usualGrace, exit: exit, message: message}
}

// locked calls do with the lock held.
func (w *signalWatch) locked(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
}

// allow sets how long the command may take to end after the first signal; with 0, it ends at once.
func (w *signalWatch) allow(grace time.Duration) { w.locked(func() { w.grace = grace }) }

// before sets a function to call before the process is ended, to end what it has started.
func (w *signalWatch) before(last func()) { w.locked(func() { w.last = last }) }

// hush makes the process end without a message: it is printed already, or another process prints it.
func (w *signalWatch) hush() { w.locked(func() { w.hushed = true }) }

// save delays the end of the grace until done is called. A second signal does not wait.
func (w *signalWatch) save() (done func()) {
	w.saving.Add(1)
	return w.saving.Done
}

// idle returns a channel that is closed once nothing is being saved.
func (w *signalWatch) idle() <-chan struct{} {
	saved := make(chan struct{})
	go func() {
		w.saving.Wait()
		close(saved)
	}()
	return saved
}

// timeLeft returns a channel that fires at the end of the grace; for SIGUSR1 never.
func (w *signalWatch) timeLeft(first os.Signal) <-chan time.Time {
	if first == syscall.SIGUSR1 {
		return nil
	}
	var grace time.Duration
	w.locked(func() { grace = w.grace })
	return time.After(grace)
}

// context starts the watch, and returns a context that ends at the first signal.
func (w *signalWatch) context() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	caught := make(chan os.Signal, 8)
	signal.Notify(caught, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1)
	if !signal.Ignored(syscall.SIGHUP) { // as nohup has it
		signal.Notify(caught, syscall.SIGHUP)
	}
	go w.watch(caught, cancel)
	return ctx
}

func (w *signalWatch) watch(caught <-chan os.Signal, cancel context.CancelFunc) {
	first := <-caught
	at := time.Now()
	cancel()
	over, idle := w.timeLeft(first), (<-chan struct{})(nil)
	for {
		select {
		case <-over:
			idle = w.idle()
		case <-idle:
			w.end(first, "it was still at work")
			return
		case again := <-caught:
			if time.Since(at) > sameSignal {
				w.end(again, "at once, as a second signal came")
				return
			}
		}
	}
}

// end ends the process with the status that shells use for a signal: 128 and its number.
func (w *signalWatch) end(by os.Signal, how string) {
	s := by.(syscall.Signal)
	var last func()
	var hushed bool
	w.locked(func() { last, hushed = w.last, w.hushed })
	if last != nil {
		last()
	}
	if !hushed {
		fmt.Fprintf(w.message, "shardbook: ended by %s: %s; finished checkpoints are complete\n", unix.SignalName(s),
			how)
	}
	w.exit(128 + int(s))
}
