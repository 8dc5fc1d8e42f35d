package logjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/slogtest"
	"time"

	"pgregory.net/rapid"
)

type named int

func (named) String() string { return "a name" }

func TestLine(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(New(&out, slog.LevelInfo))
	log.Debug("not printed")
	log.With("member", "default").WithGroup("g").With("a", 1).Warn("a \"message\"\n\x01\xff",
		"wait", 1500*time.Millisecond, "error", errors.New("bad"), "urls", []string{"http://a:1"}, "n", uint64(1)<<63,
		"f", 0.5, "ok", true, "who", named(1), "none", nil, "at", time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC),
		"bytes", []byte("hi"), slog.Group("in", "x", 1, "y", "z"), slog.Group("empty"))
	_, file, _, _ := runtime.Caller(0)
	if !strings.HasSuffix(file, "logjson/handler_test.go") {
		t.Fatalf("this file is %s", file)
	}
	ts := regexp.MustCompile(`"ts":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d{4})"`)
	got := ts.ReplaceAllString(out.String(), `"ts":"T"`)
	got = regexp.MustCompile(`_test.go:\d+`).ReplaceAllString(got, "_test.go:N")
	want := `{"level":"warn","ts":"T","caller":"logjson/handler_test.go:N","msg":"a \"message\"\n\u0001` + "\uFFFD" + `","member":"default",` +
		`"g":{"a":1,"wait":"1.5s","error":"bad","urls":["http://a:1"],"n":9223372036854775808,"f":0.5,"ok":true,"who":"a name","none":null,` +
		`"at":"2026-01-02T03:04:05.000006Z","bytes":"aGk=","in":{"x":1,"y":"z"}}}` + "\n"
	if got != want {
		t.Errorf("printed\n%swant\n%s", got, want)
	}
}

func TestLevels(t *testing.T) {
	for name, want := range map[string]slog.Level{"debug": -4, "info": 0, "warn": 4, "error": 8, "panic": 12, "fatal": 12} {
		got, err := ParseLevel(name)
		if err != nil || got != want {
			t.Errorf("level %q is %v, error %v", name, got, err)
		}
		if name != "panic" && levelName(want) != name {
			t.Errorf("level %d is printed as %q, want %q", want, levelName(want), name)
		}
	}
	if _, err := ParseLevel("loud"); err == nil {
		t.Error("there is no level \"loud\"")
	}
}

// TestHandler runs the standard library's tests of handlers, with the names that it expects.
func TestHandler(t *testing.T) {
	var out bytes.Buffer
	slogtest.Run(t, func(*testing.T) slog.Handler {
		out.Reset()
		return New(&out, slog.LevelDebug)
	}, func(t *testing.T) map[string]any {
		var m map[string]any
		if err := json.Unmarshal(out.Bytes(), &m); err != nil {
			t.Fatalf("%v: %s", err, out.String())
		}
		if ts, ok := m["ts"]; ok {
			m[slog.TimeKey] = ts
		}
		return m
	})
}

// TestAlwaysJSON: whatever is logged, a line is one JSON object with the message and the values.
func TestAlwaysJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
		msg, key, value := text.Draw(t, "msg"), "k"+text.Draw(t, "key"), text.Draw(t, "value")
		var out bytes.Buffer
		log := slog.New(New(&out, slog.LevelInfo))
		for range rapid.IntRange(0, 3).Draw(t, "groups") {
			log = log.WithGroup("g")
		}
		log.Info(msg, key, value, "f", rapid.Float64().Draw(t, "f"), "any", map[string]any{"c": func() {}})
		line := out.String()
		if strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "\n") {
			t.Fatalf("not one line: %q", line)
		}
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if want := strings.ToValidUTF8(msg, "\uFFFD"); m["msg"] != want && strings.Count(want, "\uFFFD") == 0 {
			t.Fatalf("message %q, want %q", m["msg"], want)
		}
	})
}
