package launch

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// maxSlots is far more than a host has; it prevents overflow of sums.
const maxSlots = 1 << 16

// hostName excludes characters with a meaning to mpirun or ssh: colons, commas, leading hyphens.
var hostName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)

// hostList collects hosts in the order of their first mention. As in Open MPI, slots of a repeated host add up.
type hostList []Host

func (l *hostList) add(name, slots string) error {
	n := 1
	if slots != "" {
		var err error
		if n, err = strconv.Atoi(slots); err != nil || n < 1 || n > maxSlots {
			return fmt.Errorf("host %.80q has %.40q slots: want 1 to %d", name, slots, maxSlots)
		}
	}
	if !hostName.MatchString(name) {
		return fmt.Errorf("%.80q is no host name: want letters, digits, dots and hyphens (a user, or an address of "+
			"IPv6, goes into ssh's configuration)", name)
	}
	i := slices.IndexFunc(*l, func(h Host) bool { return h.Name == name })
	if i < 0 {
		*l = append(*l, Host{Name: name, Slots: n})
		return nil
	}
	if (*l)[i].Slots += n; (*l)[i].Slots > maxSlots {
		return fmt.Errorf("host %.80q has %d slots in all: want at most %d", name, (*l)[i].Slots, maxSlots)
	}
	return nil
}

// ParseHostfile reads a hostfile of Open MPI: a host per line, followed by slots=N (default 1). # starts a comment;
// max_slots is ignored. The slots of a repeated host add up. Errors have the line's number.
func ParseHostfile(r io.Reader) ([]Host, error) {
	var hosts hostList
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		slots := ""
		for _, field := range fields[1:] {
			key, value, ok := strings.Cut(field, "=")
			switch {
			case !ok || value == "" || key != "slots" && key != "max_slots" && key != "max-slots":
				return nil, fmt.Errorf("line %d: %.80q after host %.80q: want slots=N", n, field, fields[0])
			case key == "slots":
				slots = value
			}
		}
		if err := hosts.add(fields[0], slots); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(hosts) == 0 {
		return nil, fmt.Errorf("there is no host in it: want lines such as %q", "node1 slots=2")
	}
	return hosts, nil
}

// ParseHosts reads a list such as a:2,b:1 of hosts and slots (default 1). The slots of a repeated host add up.
func ParseHosts(text string) ([]Host, error) {
	var hosts hostList
	for _, item := range strings.Split(text, ",") {
		name, slots, given := strings.Cut(strings.TrimSpace(item), ":")
		if given && slots == "" {
			return nil, fmt.Errorf("host %.80q has no number behind its colon", name)
		}
		if err := hosts.add(name, slots); err != nil {
			return nil, err
		}
	}
	return hosts, nil
}

// Discover runs a script that prints the available hosts, one per line, as NAME or NAME:SLOTS, such as the MPI
// Operator's discover_hosts.sh. Slots default to those of the host in known, else to 1. The list may be empty.
func Discover(ctx context.Context, script string, known []Host) ([]Host, error) {
	output, err := output(ctx, script)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", script, err)
	}
	var hosts hostList
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		name, slots, _ := strings.Cut(line, ":")
		if i := slices.IndexFunc(known, func(h Host) bool { return h.Name == name }); i >= 0 && slots == "" {
			slots = strconv.Itoa(known[i].Slots)
		}
		if err := hosts.add(name, slots); err != nil {
			return nil, fmt.Errorf("%s: %w", script, err)
		}
	}
	return hosts, nil
}
