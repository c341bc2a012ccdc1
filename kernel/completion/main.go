// Command completion stands between GoNB and gopls, so that gopls uses memory only while somebody asks for completion.
//
// GoNB starts a gopls with each kernel, opens every file of the checkout in it, and keeps it until the kernel ends.
// Set-up installs this program as the gopls that GoNB finds, and the other one in the folder "real" beside it. It
// accepts GoNB's messages, starts gopls at the first request, limits its memory, and ends it when nobody has asked for
// minutes.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// connectTime is how long GoNB has to connect. It tries after 12 s, and gives up after 30 s.
const connectTime = time.Minute

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gopls:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	gopls := filepath.Join(filepath.Dir(program), "real", "gopls")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	switch {
	case len(args) == 2 && args[0] == "-listen":
		return serve(ctx, args[1], connectTime, environment(gopls))
	case len(args) > 1 && args[0] == "warm-up":
		return warmUp(ctx, args[1:], environment(gopls))
	}
	return syscall.Exec(gopls, append([]string{gopls}, args...), os.Environ()) // whoever wants gopls itself
}

// serve serves the first client that connects to an address such as "unix;/tmp/socket", until that closes the
// connection or ctx ends. It leaves no socket.
func serve(ctx context.Context, address string, connectTime time.Duration, s settings) error {
	path, ok := strings.CutPrefix(address, "unix;")
	if !ok {
		return fmt.Errorf("-listen %q: give it a Unix socket, as unix;PATH", address)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	defer listener.Close()
	// If GoNB is killed before it connects, nothing else tells.
	if err := listener.SetDeadline(time.Now().Add(connectTime)); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	client, err := listener.Accept()
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	listener.Close() // GoNB connects once, and may kill this process
	defer client.Close()
	defer context.AfterFunc(ctx, func() { client.Close() })()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	newProxy(s, client).run(ticker.C)
	return nil
}
