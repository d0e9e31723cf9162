/* The marker: which of two databases may delete objects under a prefix (gc.compare_marker).
 *
 * At any moment a copy of the original is made. Each of the two has a worker; without a copy, the original
 * has two. One object is
 * dead in the copy and live in the original, where its row came back after the copy was made.
 *
 * One atomic step here is one call of gc.compare_marker or gc.claim, because each locks the database's row of
 * the marker until it commits; or one request to the store, which answers one after the other. Each move
 * has a token of its own, so the token tells the version of the marker too (its tag).
 *
 * What the copy is, one of:
 *   ELSEWHERE     a dump, a template, a base backup: its place is not the original's
 *   DISK          a snapshot of the disk: it only knows that its server was started again
 *   CLONED        a running machine with its memory: nothing tells it from the original
 *   NO_COPY
 * DOWN: the original's workers may be down, or silent, for as long as a copy watches the marker.
 * LEASES: the original's workers may ask for a lease that is longer than any before, and do not move the marker while
 * they delete under it; or it was asked for before. Without, a lease is over before a watch is. FEW_MOVES: one less.
 * What is asked: the copy never deletes; with EXCLUSIVE, never do both databases hold that they may.
 * What is broken on purpose is said where it is: #ifdef WITHOUT_… and UNCONDITIONAL.
 */

#ifndef FEW_MOVES
#define MOST_MOVES  3           /* tokens are 1 to 4; whoever would need one more is done */
#else
#define MOST_MOVES  2
#endif
#define BIT(n)      (1 << (n))
#define NOBODY      255
#define ORIGINAL    0
#define COPY        1

typedef Database {
    byte token = 1;             /* the last move that is known to be done */
    byte next_token;            /* the one that is prepared; 0: none */
    byte next_by = NOBODY;      /* the worker that makes it, or reads */
    byte lost_tokens;           /* moves of which nobody knows whether they were done */
    bool checked;               /* checked_at is less than a minute ago */
    bool was_moved;             /* moved_at is less than two seconds ago */
    bool next_in_time;          /* next_since is a moment ago */
    bool started_again;         /* server_start is not this server's */
    byte watched;               /* the marker that is being watched; 0: none */
#ifdef LEASES
    bool knows_long;            /* lease, the longest that was asked for, is the long one */
    bool leased;                /* objects are being deleted under the long one */
#endif
};
Database databases[2];

byte marker = 1;                /* in the store: a token */
byte moves = 1;                 /* how many tokens there were */
bool copied;
bool killed[3];

#define D databases[mine]
#ifdef ELSEWHERE
#define IS_ELSEWHERE (mine == COPY)
#else
#define IS_ELSEWHERE false
#endif
#define IS_WELL     (!D.started_again)
/* gc._is_compared */
#define IS_COMPARED(database_) (databases[database_].checked && !databases[database_].started_again)
#define IS_OURS(token_) (token_ == D.token || token_ == D.next_token || (D.lost_tokens & BIT(token_)))

/* gc._watching_time: the longest lease that this database knows of, and longer than a check or a move counts. In
 * that time a runner that is alive moves the marker, unless it still deletes under a lease that is longer. */
#define IS_SILENT   (!databases[ORIGINAL].checked && !databases[ORIGINAL].was_moved \
                     && !databases[ORIGINAL].next_in_time)
#ifndef LEASES
#define HAS_LEASE   false
#define OUTLASTS    false
#else
#define HAS_LEASE   databases[ORIGINAL].leased
#ifndef WITHOUT_LEASE_IN_WATCH
#define OUTLASTS    (HAS_LEASE && !D.knows_long)
#else
#define OUTLASTS    HAS_LEASE
#endif
#endif
#ifdef DOWN
#define WATCH_MAY_END (IS_SILENT && (!HAS_LEASE || OUTLASTS))
#else
#define WATCH_MAY_END (mine == ORIGINAL || (IS_SILENT && OUTLASTS))
#endif

/* gc._go_if_fresh: what a worker says of a marker counts only if it was told to read or write it a moment ago. */
#ifndef WITHOUT_FRESHNESS
#define ASKED       true
#define TOO_LATE    (!D.next_in_time)
#else
#define ASKED       false
#define TOO_LATE    false
#endif

#ifdef EXCLUSIVE
#define MAY_DELETE  assert(!((IS_COMPARED(ORIGINAL) || HAS_LEASE) && IS_COMPARED(COPY)))
#else
#define MAY_DELETE  assert(mine == ORIGINAL)
#endif

/* gc._prepare_move: committed before anything is written. */
inline prepare_move(replaces) {
    if
    :: moves > MOST_MOVES -> D.next_by = NOBODY; goto end_done
    :: else -> skip
    fi;
    moves++;
    fresh = moves; tag = replaces;
    D.lost_tokens = D.lost_tokens | (D.next_token -> BIT(D.next_token) : 0);
    seen = 0; D.next_token = fresh; D.next_by = me; D.next_in_time = ASKED;
    printf("worker %d: prepares move %d, which replaces %d\n", me, fresh, tag)
}

/* gc._note_done */
inline note_done(token_) {
    D.token = token_;
    D.next_token = (D.next_token == token_ -> 0 : D.next_token);
    D.next_by = NOBODY; D.watched = 0
}

/* gc._stop: nothing is handed out. It is asked again later. */
inline stop() {
    D.checked = false; D.next_by = NOBODY
}

/* gc._note_lease: one that is longer than any before needs another move, which copies see that were made before. */
inline note_lease() {
    if
    :: !D.knows_long ->
        D.knows_long = true;
#ifndef WITHOUT_MOVE_BEFORE_LEASE
        D.checked = false; D.was_moved = false; D.next_in_time = false;
#endif
        printf("worker %d: notes the long lease\n", me)
    :: else -> skip
    fi
}

proctype Worker(byte me; byte mine) {
    byte seen, fresh, tag;
end_waiting:
    copied || mine == ORIGINAL;
    {
        printf("worker %d: starts\n", me);
begin:
        /* gc._begin_comparing */
        atomic {
            seen = 0; fresh = 0; tag = 0;
            if
            :: IS_ELSEWHERE -> stop(); printf("worker %d: is elsewhere, and stops\n", me); goto end_done
            :: !IS_ELSEWHERE && D.next_by != NOBODY && D.next_by != me && IS_WELL && D.checked -> goto go
            /* Whoever has not come back for a while may be dead. */
            :: !IS_ELSEWHERE && IS_WELL && D.next_token == 0 && !D.was_moved -> prepare_move(D.token); goto write
            :: !IS_ELSEWHERE -> D.next_by = me; D.next_in_time = ASKED
            fi
        };
read:
        /* A request to the store. */
        atomic { seen = marker; printf("worker %d: reads marker %d\n", me, seen) };
        /* gc._after_read */
        atomic {
            if
            :: D.next_by != me || TOO_LATE -> goto begin
#ifndef WITHOUT_COMPARISON
            :: D.next_by == me && !TOO_LATE && !IS_OURS(seen) ->
                printf("worker %d: stops, for the marker is not ours\n", me);
                stop();
                /* A kill, or a second worker, must not look like a copy. */
#ifdef NO_COPY
                assert(false);
#endif
                goto end_done
#endif
#ifndef WITHOUT_WATCH
            :: D.next_by == me && !TOO_LATE && IS_OURS(seen) && D.started_again && D.watched != seen ->
                printf("worker %d: watches marker %d\n", me, seen);
                D.watched = seen; stop(); goto begin
            :: D.next_by == me && !TOO_LATE && IS_OURS(seen) && D.started_again && D.watched == seen && !WATCH_MAY_END ->
                stop(); goto end_watching
#endif
            :: else -> skip
            fi;
            note_done(seen);
            if
            :: D.was_moved -> D.checked = true; goto go
            :: else -> prepare_move(seen)
            fi
        };
write:
        /* A request to the store, carried out only if nobody has written since. */
        atomic {
            if
#ifdef UNCONDITIONAL
            :: true ->
#else
            :: marker == tag ->
#endif
                marker = fresh; printf("worker %d: writes marker %d\n", me, fresh)
            :: else -> printf("worker %d: its write is refused\n", me); goto refused
            fi
        };
        /* gc._after_write: what was prepared meanwhile by another counts, not this. */
        atomic {
            if
            :: D.next_by != me || TOO_LATE -> goto begin
            :: D.next_by == me && !TOO_LATE && D.next_token != fresh -> goto read
            :: else -> skip
            fi;
            note_done(fresh);
            D.checked = true; D.was_moved = true; D.started_again = false;
#ifndef UNCONDITIONAL
            D.lost_tokens = 0;
#endif
            printf("worker %d: notes marker %d\n", me, fresh)
        };
        goto go;
refused:
        atomic {
            if
            :: D.next_by != me -> goto begin
            :: else -> goto read
            fi
        };
end_watching:
        /* Until the marker has moved, or the watch may end. */
        atomic { marker != D.watched || WATCH_MAY_END -> goto begin };
go:
        /* gc.claim, and the deletion under its lease. */
        atomic {
#ifdef LEASES
            if
            :: mine == ORIGINAL -> note_lease(); D.leased = D.leased || IS_COMPARED(mine)
            :: true -> skip
            fi;
#endif
            if
            :: IS_COMPARED(mine) && !IS_ELSEWHERE -> printf("worker %d: deletes\n", me); MAY_DELETE
            :: else -> skip
            fi
        };
        goto begin
    } unless {
        atomic { killed[me] -> printf("worker %d: is killed\n", me) }
    };
end_done:
    skip
}

/* At any moment: all that the original knows, whatever is under way there. */
active proctype copying() {
#ifndef NO_COPY
    atomic {
        databases[COPY].token = databases[ORIGINAL].token;
        databases[COPY].next_token = databases[ORIGINAL].next_token;
        databases[COPY].next_by = databases[ORIGINAL].next_by;
        databases[COPY].lost_tokens = databases[ORIGINAL].lost_tokens;
        databases[COPY].checked = databases[ORIGINAL].checked;
        databases[COPY].was_moved = databases[ORIGINAL].was_moved;
        databases[COPY].next_in_time = databases[ORIGINAL].next_in_time;
#ifdef LEASES
        databases[COPY].knows_long = databases[ORIGINAL].knows_long;
#endif
#ifdef DISK
        databases[COPY].started_again = true;
#endif
        copied = true;
        printf("the database is copied\n")
    }
#endif
    skip
}

/* What is a moment ago is longer ago at any moment. */
active proctype clock() {
end_clock:
    do
    :: databases[ORIGINAL].checked -> databases[ORIGINAL].checked = false
    :: databases[ORIGINAL].was_moved -> databases[ORIGINAL].was_moved = false
    :: databases[ORIGINAL].next_in_time -> databases[ORIGINAL].next_in_time = false
    :: databases[COPY].checked -> databases[COPY].checked = false
    :: databases[COPY].was_moved -> databases[COPY].was_moved = false
    :: databases[COPY].next_in_time -> databases[COPY].next_in_time = false
#ifdef LEASES
    :: databases[ORIGINAL].leased -> databases[ORIGINAL].leased = false
#endif
    od
}

/* A worker of the original, at any moment or never. With leases this is left out: it is as if its turn never came. */
#ifndef LEASES
active proctype crash() {
    if
    :: killed[0] = true
    :: skip
    fi
}
#endif

init {
    atomic {
#ifdef LEASES
        if
        :: skip
        :: databases[ORIGINAL].knows_long = true
        fi;
#endif
        run Worker(0, ORIGINAL);
#ifdef NO_COPY
        run Worker(1, ORIGINAL)
#else
        run Worker(2, COPY)
#endif
    }
}
