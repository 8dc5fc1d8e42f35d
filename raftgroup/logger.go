package raftgroup

import (
	"context"
	"fmt"
	"log/slog"
)

// raftLogger gives Raft's messages to slog. What Raft calls information or a warning is one line per vote, stale heartbeat or
// dropped proposal: here it is for debugging, and the store tells of role changes itself.
type raftLogger struct{ l *slog.Logger }

func (r raftLogger) log(level slog.Level, v []any) {
	if r.l.Enabled(context.Background(), level) {
		r.l.Log(context.Background(), level, fmt.Sprint(v...))
	}
}

func (r raftLogger) logf(level slog.Level, format string, v []any) {
	if r.l.Enabled(context.Background(), level) {
		r.l.Log(context.Background(), level, fmt.Sprintf(format, v...))
	}
}

func (r raftLogger) Debug(v ...any)                   { r.log(slog.LevelDebug, v) }
func (r raftLogger) Debugf(format string, v ...any)   { r.logf(slog.LevelDebug, format, v) }
func (r raftLogger) Info(v ...any)                    { r.log(slog.LevelDebug, v) }
func (r raftLogger) Infof(format string, v ...any)    { r.logf(slog.LevelDebug, format, v) }
func (r raftLogger) Warning(v ...any)                 { r.log(slog.LevelDebug, v) }
func (r raftLogger) Warningf(format string, v ...any) { r.logf(slog.LevelDebug, format, v) }
func (r raftLogger) Error(v ...any)                   { r.log(slog.LevelError, v) }
func (r raftLogger) Errorf(format string, v ...any)   { r.logf(slog.LevelError, format, v) }

// Raft panics when an invariant of its own is broken; so do we.

func (r raftLogger) Fatal(v ...any)                 { panic(fmt.Sprint(v...)) }
func (r raftLogger) Fatalf(format string, v ...any) { panic(fmt.Sprintf(format, v...)) }
func (r raftLogger) Panic(v ...any)                 { panic(fmt.Sprint(v...)) }
func (r raftLogger) Panicf(format string, v ...any) { panic(fmt.Sprintf(format, v...)) }
