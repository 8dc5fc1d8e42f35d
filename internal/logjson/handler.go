// Package logjson is a slog.Handler that prints etcd's log format, which tools and tests that read etcd's log know: one JSON
// object to a line, with level, ts, caller and msg first and the record's own fields after them.
//
//	{"level":"info","ts":"2026-01-02T03:04:05.678901Z","caller":"node/node.go:17","msg":"started","member":"default"}
//
// Durations and errors are texts, groups are objects. Lines are written whole, one Write call each.
package logjson

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// LevelFatal is above slog.LevelError; a record with it is printed as etcd's "fatal". The handler does not end the process.
const LevelFatal = slog.LevelError + 4

// timeFormat is that of etcd's log.
const timeFormat = "2006-01-02T15:04:05.000000Z0700"

// Handler prints records. It may be used from any goroutine.
type Handler struct {
	out    *output
	level  slog.Leveler
	prefix []byte // encoded attributes of WithAttrs, each with a comma in front, and the groups opened between them
	open   int    // groups that prefix leaves open
	groups []string
}

type output struct {
	mu sync.Mutex
	w  io.Writer
}

// New makes a handler that prints records at or above a level.
func New(w io.Writer, level slog.Leveler) *Handler {
	return &Handler{out: &output{w: w}, level: level}
}

// ParseLevel reads the value of etcd's --log-level.
func ParseLevel(s string) (slog.Level, error) {
	switch s {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	case "dpanic", "panic", "fatal":
		return LevelFatal, nil
	}
	return 0, fmt.Errorf("unrecognized level: %q", s)
}

func levelName(l slog.Level) string {
	switch {
	case l < slog.LevelInfo:
		return "debug"
	case l < slog.LevelWarn:
		return "info"
	case l < slog.LevelError:
		return "warn"
	case l < LevelFatal:
		return "error"
	}
	return "fatal"
}

// Enabled tells whether records of the level are printed.
func (h *Handler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level.Level() }

// Handle prints a record.
func (h *Handler) Handle(_ context.Context, r slog.Record) error {
	b := make([]byte, 0, 512)
	b = append(b, `{"level":"`...)
	b = append(b, levelName(r.Level)...)
	if !r.Time.IsZero() {
		b = append(b, `","ts":"`...)
		b = r.Time.AppendFormat(b, timeFormat)
	}
	if at := caller(r.PC); at != "" {
		b = append(b, `","caller":`...)
		b = appendString(b, at)
	} else {
		b = append(b, '"')
	}
	b = append(b, `,"msg":`...)
	b = appendString(b, r.Message)
	b = append(b, h.prefix...)
	open := h.open
	var own []byte
	r.Attrs(func(a slog.Attr) bool {
		own = appendAttr(own, a)
		return true
	})
	if len(own) > 0 {
		b, open = openGroups(b, h.groups, open)
		b = appendMembers(b, own)
	}
	for range open + 1 {
		b = append(b, '}')
	}
	b = append(b, '\n')
	h.out.mu.Lock()
	defer h.out.mu.Unlock()
	_, err := h.out.w.Write(b)
	return err
}

// WithAttrs returns a handler that prints the attributes with every record.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	var own []byte
	for _, a := range attrs {
		own = appendAttr(own, a)
	}
	if len(own) == 0 {
		return h
	}
	next := *h
	next.prefix, next.open = openGroups(append([]byte(nil), h.prefix...), h.groups, h.open)
	next.prefix = appendMembers(next.prefix, own)
	next.groups = nil
	return &next
}

// WithGroup returns a handler that puts what is added later into an object.
func (h *Handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	next := *h
	next.groups = append(append([]string(nil), h.groups...), name)
	return &next
}

func openGroups(b []byte, groups []string, open int) ([]byte, int) {
	for _, g := range groups {
		b = appendKey(b, g)
		b = append(b, '{')
		open++
	}
	return b, open
}

// appendMembers puts encoded members, which begin with a comma, at the end of an object that may just have been opened.
func appendMembers(b, members []byte) []byte {
	if len(b) > 0 && b[len(b)-1] == '{' {
		members = members[1:]
	}
	return append(b, members...)
}

// caller is the last folder, file and line of a call, as zap's short form.
func caller(pc uintptr) string {
	if pc == 0 {
		return ""
	}
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	if frame.File == "" {
		return ""
	}
	file := frame.File
	if i := strings.LastIndexByte(file, '/'); i > 0 {
		if j := strings.LastIndexByte(file[:i], '/'); j >= 0 {
			file = file[j+1:]
		}
	}
	return file + ":" + strconv.Itoa(frame.Line)
}

func appendKey(b []byte, key string) []byte {
	if len(b) == 0 || b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	b = appendString(b, key)
	return append(b, ':')
}

func appendAttr(b []byte, a slog.Attr) []byte {
	a.Value = a.Value.Resolve()
	if a.Equal(slog.Attr{}) {
		return b
	}
	if a.Value.Kind() == slog.KindGroup {
		members := a.Value.Group()
		if len(members) == 0 {
			return b
		}
		if a.Key == "" {
			for _, m := range members {
				b = appendAttr(b, m)
			}
			return b
		}
		b = appendKey(b, a.Key)
		b = append(b, '{')
		for _, m := range members {
			b = appendAttr(b, m)
		}
		return append(b, '}')
	}
	b = appendKey(b, a.Key)
	return appendValue(b, a.Value)
}

func appendValue(b []byte, v slog.Value) []byte {
	switch v.Kind() {
	case slog.KindString:
		return appendString(b, v.String())
	case slog.KindInt64:
		return strconv.AppendInt(b, v.Int64(), 10)
	case slog.KindUint64:
		return strconv.AppendUint(b, v.Uint64(), 10)
	case slog.KindBool:
		return strconv.AppendBool(b, v.Bool())
	case slog.KindFloat64:
		if f := v.Float64(); !math.IsNaN(f) && !math.IsInf(f, 0) {
			return strconv.AppendFloat(b, f, 'g', -1, 64)
		}
		return appendString(b, v.String())
	case slog.KindDuration:
		return appendString(b, v.Duration().String())
	case slog.KindTime:
		return appendString(b, v.Time().Format(timeFormat))
	}
	return appendAny(b, v.Any())
}

// appendAny prefers what a value says of itself to what it consists of.
func appendAny(b []byte, v any) []byte {
	switch x := v.(type) {
	case error:
		return appendString(b, x.Error())
	case json.Marshaler, []string:
	case fmt.Stringer:
		return appendString(b, x.String())
	case []time.Duration:
		texts := make([]string, len(x))
		for i, d := range x {
			texts[i] = d.String()
		}
		v = texts
	}
	if text, err := json.Marshal(v); err == nil {
		return append(b, text...)
	}
	return appendString(b, fmt.Sprintf("%+v", v))
}

const hex = "0123456789abcdef"

// appendString appends s as a JSON string; bytes that are no UTF-8 become U+FFFD.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, `\n`...)
		case c == '\r':
			b = append(b, `\r`...)
		case c == '\t':
			b = append(b, `\t`...)
		case c < 0x20:
			b = append(b, `\u00`...)
			b = append(b, hex[c>>4], hex[c&15])
		case c < utf8.RuneSelf:
			b = append(b, c)
		default:
			r, size := utf8.DecodeRuneInString(s[i:])
			b = utf8.AppendRune(b, r) // RuneError for a faulty byte
			i += size
			continue
		}
		i++
	}
	return append(b, '"')
}
