// Package notebooks holds the notebooks, and these tests run every one of them.
package notebooks

import (
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
	"github.com/shardbook/shardbook/kernel"
)

// envOffline marks the process that TestNotebooks starts with the network cut.
const envOffline = "SHARDBOOK_TEST_OFFLINE"

// envOut names the folder in which that process leaves the executed notebooks.
const envOut = "SHARDBOOK_TEST_OUT"

func TestMain(m *testing.M) {
	if os.Getenv(envOffline) != "" {
		if err := loopbackUp(); err != nil {
			fmt.Println("no loopback in the new network namespace:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// TestNotebooks runs every notebook after set-up with the network cut: as root in
// a network namespace that has nothing but the loopback that kernels talk over.
// Then it opens the exported HTML in a browser and watches what it loads.
func TestNotebooks(t *testing.T) {
	k := kerneltest.Ready(t)
	out := t.TempDir()
	if os.Geteuid() != 0 {
		t.Log("not root, so the network stays on")
		runAll(t, k, out)
	} else {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRunOffline$", "-test.v")
		cmd.Env = append(os.Environ(), envOffline+"=1", envOut+"="+out)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		output, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
	}
	pages, err := filepath.Glob(filepath.Join(out, "*.html"))
	if err != nil || len(pages) < 2 {
		t.Fatalf("exported pages %q, %v", pages, err)
	}
	for _, page := range pages {
		checkPage(t, page)
	}
}

// TestRunOffline is what TestNotebooks runs in the process without a network.
func TestRunOffline(t *testing.T) {
	if os.Getenv(envOffline) == "" {
		t.Skip("TestNotebooks starts this")
	}
	if conn, err := net.Dial("udp", "192.0.2.1:9"); err == nil { // an address for documentation: RFC 5737
		conn.Close()
		t.Fatal("the network is not cut")
	}
	k, err := kernel.New(".", "")
	if err != nil {
		t.Fatal(err)
	}
	runAll(t, k, os.Getenv(envOut))
}

// runAll runs two notebooks at a time: much of each is the Go linker, which keeps one core busy.
func runAll(t *testing.T, k *kernel.Kernel, out string) {
	paths, err := k.FindNotebooks(nil)
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(paths) // the long ones first
	turn := make(chan bool, 2)
	var wait sync.WaitGroup
	for _, path := range paths {
		turn <- true
		wait.Go(func() {
			defer func() { <-turn }()
			name := strings.TrimSuffix(filepath.Base(path), ".ipynb")
			err := k.Headless(t.Context(), kernel.Run{
				Notebook: path,
				Ipynb:    filepath.Join(out, name+".ipynb"),
				HTML:     filepath.Join(out, name+".html"),
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
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

// TestCommitted checks what is committed: every code cell has run, in order, none
// has failed, and every chart is an image that needs nothing else.
func TestCommitted(t *testing.T) {
	paths, err := filepath.Glob("*.ipynb")
	if err != nil || len(paths) < 2 {
		t.Fatalf("notebooks %q, %v", paths, err)
	}
	for _, path := range paths {
		for i, cell := range read(t, path) {
			if cell.CellType != "code" {
				continue
			}
			at := fmt.Sprintf("%s, cell %d", path, i+1)
			if cell.Count == 0 {
				t.Errorf("%s has not run: shardbook notebooks --update", at)
			}
			for _, output := range cell.Outputs {
				if output.Type == "error" || output.Name == "stderr" {
					t.Errorf("%s: committed with an error: %v", at, output)
				}
				html := string(output.Data.HTML)
				charts := strings.Count(html, "<span data-shardbook-chart=")
				// PNG, since GitHub takes other images out of what it shows, with the gist for those who do not see it.
				images := pngImage.FindAllStringSubmatch(html, -1)
				if len(images) != charts {
					t.Errorf("%s: %d charts and %d PNG images with alternative texts", at, charts, len(images))
				}
			}
		}
	}
}
