package xplane

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/shardbook/shardbook/internal/must"
)

// schema is what xplane.proto has: a message a paragraph, its fields with their numbers and types, and * before those
// that are repeated. The tables of a plane, which are maps, are lists of entries, as maps are when serialized.
const schema = `
XSpace planes 1 *XPlane, errors 2 *string, warnings 3 *string, hostnames 4 *string

XPlane id 1 int64, name 2 string, lines 3 *XLine, event_metadata 4 *EventEntry, stat_metadata 5 *StatEntry,
stats 6 *XStat

EventEntry key 1 int64, value 2 XEventMetadata

StatEntry key 1 int64, value 2 XStatMetadata

XLine id 1 int64, name 2 string, timestamp_ns 3 int64, events 4 *XEvent, duration_ps 9 int64, display_id 10
int64, display_name 11 string

XEvent metadata_id 1 int64, offset_ps 2 int64, duration_ps 3 int64, stats 4 *XStat, num_occurrences 5 int64

XStat metadata_id 1 int64, double_value 2 double, uint64_value 3 uint64, int64_value 4 int64, str_value 5
string, bytes_value 6 bytes, ref_value 7 uint64

XEventMetadata id 1 int64, name 2 string, metadata 3 bytes, display_name 4 string, stats 5 *XStat, child_id 6
*int64

XStatMetadata id 1 int64, name 2 string, description 3 string`

// spaceType is the message XSpace.
var spaceType = func() protoreflect.MessageDescriptor {
	file := &descriptorpb.FileDescriptorProto{Name: proto.String("x.proto"), Syntax: proto.String("proto2")}
	for paragraph := range strings.SplitSeq(strings.TrimSpace(schema), "\n\n") {
		name, fields, _ := strings.Cut(paragraph, " ")
		message := &descriptorpb.DescriptorProto{Name: &name}
		for field := range strings.SplitSeq(fields, ",") {
			part := strings.Fields(field) // fields may be on several lines
			number, err := strconv.ParseInt(part[1], 10, 32)
			if err != nil {
				panic(err)
			}
			f := &descriptorpb.FieldDescriptorProto{Name: &part[0], Number: proto.Int32(int32(number)),
				Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()}
			kind, repeated := strings.CutPrefix(part[2], "*")
			if repeated {
				f.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
			}
			if value, ok := descriptorpb.FieldDescriptorProto_Type_value["TYPE_"+strings.ToUpper(kind)]; ok {
				f.Type = descriptorpb.FieldDescriptorProto_Type(value).Enum()
			} else {
				f.Type, f.TypeName = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), proto.String("."+kind)
			}
			message.Field = append(message.Field, f)
		}
		file.MessageType = append(file.MessageType, message)
	}
	made, err := protodesc.NewFile(file, nil)
	if err != nil {
		panic(err)
	}
	return made.Messages().ByName("XSpace")
}()

// space serializes an XSpace in the text format of protocol buffers.
func space(t testing.TB, text string) []byte {
	t.Helper()
	m := dynamicpb.NewMessage(spaceType)
	must.Do(t, prototext.Unmarshal([]byte(text), m))
	return must.Get(proto.MarshalOptions{Deterministic: true}.Marshal(m))(t)
}

// dumb reads messages by their names.
type dumb struct{ protoreflect.Message }

func (d dumb) value(name string) protoreflect.Value {
	return d.Get(d.Descriptor().Fields().ByName(protoreflect.Name(name)))
}
func (d dumb) has(name string) bool {
	return d.Has(d.Descriptor().Fields().ByName(protoreflect.Name(name)))
}
func (d dumb) text(name string) string  { return d.value(name).String() }
func (d dumb) int(name string) int64    { return d.value(name).Int() }
func (d dumb) message(name string) dumb { return dumb{d.value(name).Message()} }
func (d dumb) list(name string) (all []dumb) {
	for i := range d.value(name).List().Len() {
		all = append(all, dumb{d.value(name).List().Get(i).Message()})
	}
	return all
}

// find returns the value of an entry of a table; of several with one key the last.
func (d dumb) find(table string, key int64) (found dumb, ok bool) {
	for _, entry := range d.list(table) {
		if entry.int("key") == key {
			found, ok = entry.message("value"), true
		}
	}
	return found, ok
}

// name returns the name that a table has for a key, "" if none.
func (d dumb) name(table string, key int64) string {
	found, ok := d.find(table, key)
	if !ok {
		return ""
	}
	return found.text("name")
}

// written returns a statistic's value as text.
func (d dumb) written(plane dumb) string {
	switch {
	case d.has("ref_value"):
		return plane.name("stat_metadata", int64(d.value("ref_value").Uint()))
	case d.has("str_value"):
		return d.text("str_value")
	case d.has("int64_value"):
		return fmt.Sprint(d.int("int64_value"))
	case d.has("uint64_value"):
		return fmt.Sprint(d.value("uint64_value").Uint())
	}
	return ""
}

// stat looks for a statistic of an event, or else of its kind, and returns it as text: "" if there is none.
func (d dumb) stat(plane dumb, name string) (text string) {
	var all []dumb
	if kind, ok := plane.find("event_metadata", d.int("metadata_id")); ok {
		all = kind.list("stats")
	}
	for _, s := range append(all, d.list("stats")...) {
		if plane.name("stat_metadata", s.int("metadata_id")) == name {
			text = s.written(plane)
		}
	}
	return text
}

// part returns what stands after a key in a description such as "a:1 b:2".
func part(details, key string) string {
	_, after, _ := strings.Cut(" "+details, " "+key+":")
	value, _, _ := strings.Cut(after, " ")
	return value
}

func atoi(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// readDumbly reads an XSpace without any thought of how long it takes.
func readDumbly(t testing.TB, data []byte) *Profile {
	root := dynamicpb.NewMessage(spaceType)
	must.Do(t, proto.Unmarshal(data, root))
	all := dumb{root}
	p := &Profile{}
	for _, name := range []string{"errors", "warnings"} {
		for i := range all.value(name).List().Len() {
			p.Warnings = append(p.Warnings, all.value(name).List().Get(i).String())
		}
	}
	var begin int64
	for _, plane := range all.list("planes") {
		for _, s := range plane.list("stats") {
			if plane.text("name") == "Task Environment" &&
				plane.name("stat_metadata", s.int("metadata_id")) == "profile_start_time" {
				begin = atoi(s.written(plane))
			}
		}
	}
	threads, raw := map[int64]string{}, map[int64]string{}
	for _, cpu := range []bool{true, false} {
		for _, plane := range all.list("planes") {
			name := plane.text("name")
			gpu := strings.HasPrefix(name, "/device:GPU:")
			if (name == "/host:CPU") != cpu || !gpu && !strings.HasPrefix(name, "/host:") {
				continue
			}
			number := int(atoi(strings.TrimPrefix(name, "/device:GPU:")))
			if gpu {
				d := Device{Number: number}
				for _, s := range plane.list("stats") {
					switch plane.name("stat_metadata", s.int("metadata_id")) {
					case "gpu_device_name":
						d.Name = s.written(plane)
					case "memory_bandwidth":
						d.MemoryBandwidth = float64(atoi(s.written(plane)))
					}
				}
				p.Devices = append(p.Devices, d)
			}
			for _, line := range plane.list("lines") {
				if gpu && !strings.HasPrefix(line.text("name"), "Stream #") {
					continue
				}
				label, _, _ := strings.Cut(line.text("name"), "(")
				if !gpu {
					if _, ok := threads[line.int("id")]; !ok {
						same := 1
						for _, other := range raw {
							if other == line.text("name") {
								same++
							}
						}
						raw[line.int("id")], threads[line.int("id")] = line.text("name"), line.text("name")
						if same > 1 {
							threads[line.int("id")] += fmt.Sprint(" ", same)
						}
					}
					label = threads[line.int("id")]
				}
				for _, e := range line.list("events") {
					at := begin + line.int("timestamp_ns") + e.int("offset_ps")/1000
					event := Event{Host: !gpu, Device: number, Line: label,
						Name:  plane.name("event_metadata", e.int("metadata_id")),
						Start: time.Unix(0, at), Duration: time.Duration(e.int("duration_ps") / 1000),
						Module: e.stat(plane, "hlo_module"), Operation: e.stat(plane, "hlo_op"),
						Correlation: atoi(e.stat(plane, "correlation_id")),
						FLOPs:       atoi(e.stat(plane, "flops")),
						Bytes:       atoi(e.stat(plane, "bytes_accessed")),
					}
					if !gpu {
						event.Device = int(atoi(e.stat(plane, "device_id")))
					}
					if d := e.stat(plane, "memcpy_details"); d != "" {
						event.Bytes = atoi(part(d, "size"))
						event.From, event.To = part(d, "kind_src"), part(d, "kind_dst")
					}
					if d := e.stat(plane, "Memset_details"); d != "" {
						event.Bytes = atoi(part(d, "num_bytes"))
					}
					if d := e.stat(plane, "kernel_details"); d != "" {
						k := &event.Kernel
						k.Registers = int(atoi(part(d, "regs")))
						k.SharedMemory = int(atoi(part(d, "static_shared")) + atoi(part(d, "dynamic_shared")))
						k.Occupancy, _ = strconv.ParseFloat(part(d, "occ_pct"), 64)
						for i, axis := range strings.Split(part(d, "grid"), ",") {
							k.Grid[i] = int(atoi(axis))
						}
						for i, axis := range strings.Split(part(d, "block"), ",") {
							k.Block[i] = int(atoi(axis))
						}
					}
					p.Events = append(p.Events, event)
				}
			}
		}
	}
	return p
}
