package notebooks

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/shardbook/shardbook/internal/kerneltest"
	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
	"github.com/shardbook/shardbook/kernel"
)

// envScreenshot names a file into which TestLab writes a picture of JupyterLab.
const envScreenshot = "SHARDBOOK_SCREENSHOT"

// chromium returns the path of a browser, and installs Debian's if it may. Without a browser the test is skipped.
var chromium = sync.OnceValues(func() (string, error) {
	find := func() string {
		for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
			if path, err := exec.LookPath(name); err == nil {
				return path
			}
		}
		return ""
	}
	if path := find(); path != "" {
		return path, nil
	}
	if err := systest.Install("chromium"); err != nil {
		return "", fmt.Errorf("no Chromium, and %w", err)
	}
	return find(), nil
})

// browser opens a tab in a headless Chromium, which ends with the test.
func browser(t *testing.T) context.Context {
	t.Helper()
	path, err := chromium()
	if err != nil {
		systest.Skip(t, systest.System, err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.WindowSize(1400, 1000),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	allocated, stop := chromedp.NewExecAllocator(context.Background(), options...)
	tab, closeTab := chromedp.NewContext(allocated)
	ctx, cancel := context.WithTimeout(tab, 9*time.Minute)
	t.Cleanup(func() { cancel(); closeTab(); stop() })
	return ctx
}

// requests records every address that the tab requests, except those inside the page (data: and blob:).
func requests(t *testing.T, ctx context.Context) func() []string {
	t.Helper()
	var mu sync.Mutex
	var all []string
	err := chromedp.Listen(ctx, func(event any) {
		if sent, ok := event.(*network.EventRequestWillBeSent); ok {
			url := sent.Request.URL
			if !strings.HasPrefix(url, "data:") && !strings.HasPrefix(url, "blob:") {
				mu.Lock()
				all = append(all, url)
				mu.Unlock()
			}
		}
	})
	must.Do(t, err)
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

// shownCharts counts charts on the page that are pictures with a size: the static image, or the live chart.
const shownCharts = `[...document.querySelectorAll('[data-shardbook-chart]')].filter(function (box) {
	var picture = box.querySelector('img, svg');
	return picture && picture.getBoundingClientRect().width > 100 &&
		(picture.tagName !== 'IMG' || picture.naturalWidth > 100);
}).length`

// liveCharts counts those that ECharts has made live.
const liveCharts = `document.querySelectorAll('[data-shardbook-chart][data-live] svg').length`

// until waits for a JavaScript expression to be true.
func until(expression string) chromedp.Action[chromedp.Void] {
	return chromedp.Poll[chromedp.Void](expression, chromedp.WithPollingInterval(300*time.Millisecond),
		chromedp.WithPollingTimeout(6*time.Minute))
}

// choose moves the mouse over the menu entry of that class and text, which a menu requires before a click, and clicks.
func choose(class, text string) chromedp.Action[chromedp.Void] {
	entry := fmt.Sprintf(`[...document.querySelectorAll(%q)].find(e => e.textContent.trim() === %q)`, class, text)
	type place struct{ X, Y, Width, Height float64 }
	return func(ctx context.Context, tab *chromedp.Target) (chromedp.Void, error) {
		var none chromedp.Void
		if _, err := until(entry+" !== undefined")(ctx, tab); err != nil {
			return none, fmt.Errorf("no menu entry %q: %w", text, err)
		}
		box, err := chromedp.Evaluate[place](entry+".getBoundingClientRect().toJSON()")(ctx, tab)
		if err != nil {
			return none, err
		}
		x, y := box.X+box.Width/2, box.Y+box.Height/2
		if _, err := chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, x, y)(ctx, tab); err != nil {
			return none, err
		}
		return chromedp.MouseClickXY(x, y)(ctx, tab)
	}
}

// checkPage opens an exported notebook's file: it must load only itself, and all its charts must turn live.
func checkPage(t *testing.T, path string) {
	t.Helper()
	ctx := browser(t)
	asked := requests(t, ctx)
	err := chromedp.Do(ctx, chromedp.Navigate("file://"+path),
		until(shownCharts+" > 0 && "+liveCharts+" === "+shownCharts))
	if err != nil {
		shown, _ := chromedp.Run(ctx, chromedp.Evaluate[int](shownCharts))
		live, _ := chromedp.Run(ctx, chromedp.Evaluate[int](liveCharts))
		t.Errorf("%s: %d charts shown, %d live: %v", filepath.Base(path), shown, live, err)
	}
	if urls := asked(); len(urls) != 1 || urls[0] != "file://"+path {
		t.Errorf("%s loads %q, want only itself", filepath.Base(path), urls)
	}
}

// TestLab does what a new user does: it opens JupyterLab, double-clicks 00-devices, chooses Run All Cells from the
// menu, and sees charts.
func TestLab(t *testing.T) {
	systest.FullOnly(t, "JupyterLab in a browser")
	k := kerneltest.Ready(t)
	ctx := browser(t)
	dir := t.TempDir()
	withoutOutputs(t, "00-devices.ipynb", filepath.Join(dir, "00-devices.ipynb"))
	address := startLab(t, k, dir)

	// The tab may request only from the server.
	asked := requests(t, ctx)
	file := chromedp.CSS(`.jp-DirListing-item[title^="Name: 00-devices.ipynb"]`)
	err := chromedp.Do(ctx, chromedp.Navigate(address), chromedp.WaitVisible(file), chromedp.DoubleClick(file),
		chromedp.WaitVisible(chromedp.CSS(`.jp-NotebookPanel .jp-CodeCell`)),
		until(`document.body.textContent.includes('Go (shardbook) | Idle')`), choose(".lm-MenuBar-itemLabel", "Run"),
		choose(".lm-Menu-itemLabel", "Run All Cells"))
	if err != nil {
		t.Fatalf("starting the notebook: %v%s", err, screenshot(t, ctx))
	}
	// JupyterLab draws only what is near the window, so the test scrolls down to the output of the last cell.
	err = chromedp.Do(ctx,
		until(`[...document.querySelectorAll('.jp-OutputArea-output')]
			.some(o => o.textContent.includes('every device holds')) ||
			(document.querySelector('.jp-WindowedPanel-outer').scrollTop += 400, false)`),
		until(shownCharts+" > 0 && "+liveCharts+" > 0"))
	if err != nil {
		t.Fatalf("no chart on the screen: %v%s", err, screenshot(t, ctx))
	}
	if to := os.Getenv(envScreenshot); to != "" {
		// JupyterLab moves cells while it measures their heights.
		seen := until(`(() => {
			const output = [...document.querySelectorAll('[data-shardbook-chart]')].at(-1).closest('.jp-OutputArea');
			const at = output.getBoundingClientRect();
			if (at.top > 100 && at.bottom < innerHeight - 10) return true;
			output.scrollIntoView({block: 'end'});
			return false;
		})()`)
		must.Do(t, chromedp.Do(ctx, seen, chromedp.Sleep(2*time.Second), seen))
		png := must.Get(chromedp.Run(ctx, chromedp.CaptureScreenshot()))(t)
		must.Do(t, os.WriteFile(to, png, 0o644))
	}
	server, _, _ := strings.Cut(address, "/lab")
	for _, url := range asked() {
		if !strings.HasPrefix(url, server) && !strings.HasPrefix(url, strings.Replace(server, "http", "ws", 1)) {
			t.Errorf("JupyterLab loads %s", url)
		}
	}
}

// TestFirstStart opens JupyterLab, which has never run here, and a notebook, and three seconds later chooses Run All
// Cells, before the first session has started. Every cell must run, also if a slow server has not listed its sessions
// yet, or not started the new one.
func TestFirstStart(t *testing.T) {
	systest.FullOnly(t, "Run All Cells while the first session starts, in a browser")
	k := kerneltest.Ready(t)
	for name, held := range map[string]string{
		"as it comes": "", "sessions unknown": "GET", "session starting": "POST",
	} {
		t.Run(name, func(t *testing.T) { firstStart(t, k, held) })
	}
}

// holdSessions makes a page delay its requests of the method held.method to /api/sessions until held.go is called.
const holdSessions = `window.held = {method: '', n: 0};
held.until = new Promise(go => { held.go = go });
window.fetch = (send => async (what, how) => {
	const request = new Request(what, how);
	if (request.method === held.method && new URL(request.url).pathname.endsWith('/api/sessions')) {
		held.n++;
		await held.until;
	}
	return send(request);
})(window.fetch)`

// evaluate runs a JavaScript expression, whatever its value.
func evaluate(expression string) chromedp.Action[chromedp.Void] {
	return func(ctx context.Context, tab *chromedp.Target) (none chromedp.Void, err error) {
		_, err = chromedp.Evaluate[any](expression)(ctx, tab)
		return none, err
	}
}

func firstStart(t *testing.T, k *kernel.Kernel, held string) {
	ctx := browser(t)
	dir := t.TempDir()
	writeRun(t, filepath.Join(dir, "run.ipynb"))
	address := startLab(t, k, dir)
	hold := page.AddScriptToEvaluateOnNewDocumentParams{Source: holdSessions}
	must.Get(chromedp.Call(ctx, page.AddScriptToEvaluateOnNewDocument, hold))(t)
	opened := chromedp.Sleep(3 * time.Second)
	if held != "" {
		opened = until(`held.n > 0`)
	}
	file := chromedp.CSS(`.jp-DirListing-item[title^="Name: run.ipynb"]`)
	err := chromedp.Do(ctx, chromedp.Navigate(address),
		chromedp.WaitVisible(file), evaluate(fmt.Sprintf(`held.method = %q`, held)), chromedp.DoubleClick(file),
		chromedp.WaitVisible(chromedp.CSS(`.jp-NotebookPanel .jp-CodeCell`)), opened,
		choose(".lm-MenuBar-itemLabel", "Run"), choose(".lm-Menu-itemLabel", "Run All Cells"))
	if err != nil {
		t.Fatalf("starting the notebook: %v%s", err, screenshot(t, ctx))
	}
	const cells = `[...document.querySelectorAll('.jp-NotebookPanel .jp-CodeCell')].map(c => c.innerText)`
	err = chromedp.Do(ctx, until(cells+`.every(c => !c.startsWith('[9]'))`), // all are queued
		evaluate(`held.go(null)`),
		until(cells+`.every((c, i) => c.startsWith('[' + (i + 1) + ']:') && c.includes('\nran ' + (i + 1)))`))
	if err != nil {
		seen, _ := chromedp.Run(ctx, chromedp.Evaluate[[]string](cells))
		t.Fatalf("cells have not run: %q: %v%s", seen, err, screenshot(t, ctx))
	}
}

// startLab starts JupyterLab on a folder, as on a machine where it has never run, and returns its address with the
// token.
func startLab(t *testing.T, k *kernel.Kernel, dir string) string {
	t.Helper()
	free := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	port := free.Addr().(*net.TCPAddr).Port
	free.Close()
	const token = "a-token-for-this-test"
	ctx, cancel := context.WithCancel(context.Background())
	lab := must.Get(k.LabCommand(ctx, kernel.Lab{Dir: dir, NoBrowser: true, IP: "127.0.0.1", Port: port,
		Args: []string{"--ServerApp.port_retries=0", "--IdentityProvider.token=" + token}}))(t)
	settings := t.TempDir()
	lab.Env = append(lab.Env, "JUPYTER_CONFIG_DIR="+settings, "JUPYTER_DATA_DIR="+settings,
		"JUPYTERLAB_SETTINGS_DIR="+settings, "JUPYTERLAB_WORKSPACES_DIR="+settings)
	log := must.Get(os.Create(filepath.Join(settings, "log")))(t)
	lab.Stdout, lab.Stderr = log, log
	must.Do(t, lab.Start())
	t.Cleanup(func() {
		cancel()
		lab.Wait()
		log.Close()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("JupyterLab said: %s", text)
		}
		if left := processes(settings); len(left) > 0 {
			t.Errorf("JupyterLab has ended, but these run on: %q", left)
		}
	})
	server := fmt.Sprintf("127.0.0.1:%d", port)
	for range 600 {
		if conn, err := net.Dial("tcp", server); err == nil {
			conn.Close()
			return fmt.Sprintf("http://%s/lab?token=%s", server, token)
		}
		time.Sleep(100 * time.Millisecond)
	}
	text, _ := os.ReadFile(log.Name())
	t.Fatalf("JupyterLab does not answer within a minute: %s", text)
	return ""
}

// processes lists the command lines that name the folder, such as those of kernels started from it.
func processes(folder string) []string {
	var found []string
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range all {
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), folder) {
			found = append(found, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return found
}

// screenshot saves a picture of a failure and returns its path.
func screenshot(t *testing.T, ctx context.Context) string {
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		return ""
	}
	path := filepath.Join(os.TempDir(), "shardbook-"+t.Name()+".png")
	if os.WriteFile(path, png, 0o644) != nil {
		return ""
	}
	return "; screenshot in " + path
}
