// Package notebooks holds the notebooks, and these tests run them.
package notebooks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shardbook/shardbook/internal/kerneltest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/kernel"
)

// envOffline marks the process that TestNotebooks starts without a network. Its arguments are an output folder and
// notebooks.
const envOffline = "SHARDBOOK_TEST_OFFLINE"

func TestMain(m *testing.M) {
	if os.Getenv(envOffline) == "" {
		os.Exit(m.Run())
	}
	if err := runOffline(os.Args[1], os.Args[2:]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// runOffline runs notebooks in a process without a network.
func runOffline(out string, names []string) error {
	if err := loopbackUp(); err != nil {
		return fmt.Errorf("no loopback in the new network namespace: %w", err)
	}
	if conn, err := net.Dial("udp", "192.0.2.1:9"); err == nil { // an address for documentation: RFC 5737
		conn.Close()
		return errors.New("the network is not cut")
	}
	k, err := kernel.New(".", "")
	if err != nil {
		return err
	}
	return runAll(context.Background(), k, out, names)
}

// quick are the notebooks of the quick tier: a sixth of all cells, with two thirds of all notebooks' packages, kinds of
// charts and functions for cells: meshes and collectives, a training run with progress bars, and ZeRO.
var quick = []string{"00-devices", "01-first-run", "09-zero"}

// chosen returns the names of this tier's notebooks.
func chosen(t *testing.T) []string {
	t.Helper()
	paths := must.Get(filepath.Glob("[0-9]*.ipynb"))(t)
	if systest.Full() {
		var all []string
		for _, path := range paths {
			all = append(all, strings.TrimSuffix(path, ".ipynb"))
		}
		return all
	}
	rest := len(paths) - len(quick)
	systest.LeftOut(t, fmt.Sprintf("%d of %d notebooks, and exported pages in a browser", rest, len(paths)))
	return quick
}

// TestNotebooks runs notebooks after set-up without a network: as root in a network namespace with only a loopback,
// which kernels need. It compares their outputs with the committed ones. In the full tier it opens the exported HTML in
// a browser and records what it loads.
func TestNotebooks(t *testing.T) {
	k := kerneltest.Ready(t)
	out, names := t.TempDir(), chosen(t)
	if os.Geteuid() != 0 {
		t.Log("not root, so the network stays on")
		must.Do(t, runAll(t.Context(), k, out, names))
	} else {
		cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{out}, names...)...)
		cmd.Env = append(os.Environ(), envOffline+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		output, err := cmd.CombinedOutput()
		t.Logf("%s", output)
		must.Do(t, err)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			ran := filepath.Join(out, name)
			for _, why := range differences(read(t, name+".ipynb"), read(t, ran+".ipynb")) {
				t.Errorf("%s: it is right, or stale: shardbook notebooks %s --update", why, name)
			}
			if systest.Full() {
				checkPage(t, ran+".html")
			}
		})
	}
}

// runAll runs two notebooks at a time, since the Go linker uses one core. It prints how long cells took.
func runAll(ctx context.Context, k *kernel.Kernel, out string, names []string) error {
	paths, err := k.FindNotebooks(names)
	if err != nil {
		return err
	}
	slices.Reverse(paths) // the long ones first
	failures := make([]error, len(paths))
	turn := make(chan bool, 2)
	var wait sync.WaitGroup
	for i, path := range paths {
		turn <- true
		wait.Go(func() {
			defer func() { <-turn }()
			name := strings.TrimSuffix(filepath.Base(path), ".ipynb")
			var times kernel.Times
			failures[i] = k.Headless(ctx, kernel.Run{
				Notebook: path,
				Ipynb:    filepath.Join(out, name+".ipynb"),
				HTML:     filepath.Join(out, name+".html"),
				OnRan:    times.Ran,
			})
			fmt.Printf("%s: %v\n", name, times)
		})
	}
	wait.Wait()
	return errors.Join(failures...)
}

// loopbackUp switches the loopback device of a new network namespace on.
func loopbackUp() error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request)
}

// pngImage is the picture of a chart, with an alternative text that says more than a title.
var pngImage = regexp.MustCompile(`<img alt="[^"]{30,}" width="\d+" height="\d+" src="data:image/png;base64,`)

// TestCommitted checks the committed notebooks: every code cell has run, in order and once, none has failed, and every
// chart is an image that needs nothing else.
func TestCommitted(t *testing.T) {
	paths, err := filepath.Glob("*.ipynb")
	if err != nil || len(paths) < 2 {
		t.Fatalf("notebooks %q, %v", paths, err)
	}
	for _, path := range paths {
		cells := read(t, path)
		for _, why := range disordered(cells) {
			t.Errorf("%s, %s: shardbook notebooks %[1]s --update", path, why)
		}
		for i, cell := range cells {
			at := fmt.Sprintf("%s, cell %d", path, i+1)
			for _, output := range cell.Outputs {
				if output.Type == "error" || output.Name == "stderr" {
					t.Errorf("%s: committed with an error: %v", at, output)
				}
				html := string(output.Data.HTML)
				charts := strings.Count(html, "<span data-shardbook-chart=")
				// PNG with an alternative text, since GitHub removes other images.
				images := pngImage.FindAllStringSubmatch(html, -1)
				if len(images) != charts {
					t.Errorf("%s: %d charts and %d PNG images with alternative texts", at, charts, len(images))
				}
			}
		}
	}
}
