/* Rows and objects: reviews, claims, uploads and inserts, as the database and a runner carry them out.
 *
 * One object at one address. At first a row has it to which nothing refers any more: it is due for review.
 * Two writers upload the object again, insert its row and refer to it; two workers review, claim, delete and
 * confirm; leases end at any moment; one process, or the server, crashes at any moment.
 *
 * One atomic step here is one statement there, because in READ COMMITTED each statement has a snapshot of its
 * own and others run in between; what a transaction wrote shows with its last step, the commit. Locks show at
 * once. A step that begins with a condition waits for it, as a lock does. Delays are left out: what may
 * be done later may be done now.
 *
 * How the application works, one of:
 *   ANNOUNCED     gc.begin_upload, object, row, reference, gc.end_upload
 *   OBJECT_FIRST  object, row, reference
 *   ROW_FIRST     row, object, reference, within the delay of the insert's event; with KEEP_ALIVE, gc.keep_alive if
 *                 the row is there already: then there is no such event, and an older one may be due. Where a row
 *                 names a generation, a new one names none at first (null), and is updated when the object is written
 *   COPIED        nothing is uploaded: a transaction reads the url of the first row and inserts another with it
 * What a delete is, one of (none: it deletes what is there):
 *   GENERATIONS   of the generation that the tombstone names; a store has one at a time (gs)
 *   VERSIONS      of that version; the store keeps the others (s3 with versioning)
 * With GENERATIONS, how the application avoids that a row names a generation that another upload replaced:
 *   ONE_AT_A_TIME nobody begins an upload of the object before the row of another is committed
 *   NEWER_WINS    a row's generation is never replaced by an older one
 *   IF_ABSENT     an object is written only where there is none; else the row names the one that is there
 * What goes wrong, any of:
 *   LATE_DELETE   a delete reaches the store after the lease
 *   HOLD_ENDS     an upload takes longer than its hold
 * What is asked: that nothing live is lost and, when all is quiet, that nothing dead is left; with LOSS_ONLY,
 * objects that no row names may be left.
 * What is broken on purpose is said where it is: #ifdef WITHOUT_…
 */

#if defined(GENERATIONS) || defined(VERSIONS)
#define CONDITIONAL
#endif
#if defined(ROW_FIRST) && defined(CONDITIONAL)
#define NAMED_LATER
#endif

/* A process is a writer (0, 1) or a worker (2, 3). Sets of writers or generations are bits. */
#define PROCESSES   4
#define IS_WORKER(p) ((p) >= 2)
#define BIT(n)      (1 << (n))
#define NOBODY      255

#ifdef COPIED
#define KEYS        3           /* the first row, and one for each writer; they share the object */
#define KEY_OF(w)   ((w) + 1)
#else
#define KEYS        1           /* the key makes the url */
#define KEY_OF(w)   0
#endif

/* Generations are 1, at first, and 2 and 3, in the order in which the writers write. A row that names none means
 * any, 0, and its tombstone is the last. */
#ifdef NAMED_LATER
#define TOMBSTONES  4
#define TOMBSTONE_OF(key, generation) (((generation) + 3) & 3)
#define GENERATION_OF(tombstone)      (((tombstone) + 1) & 3)
#define AT_FIRST    0
#define IS_OF(t, key, generation)     ((t) == 3 || (generation) == 0 || (t) == TOMBSTONE_OF(key, generation))
#define IS_AMONG(generation, set)     ((set) & (BIT(generation) | BIT(0)) || (generation) == 0 && (set) != 0)
#else
#define AT_FIRST    1
#define IS_OF(t, key, generation)     ((t) == TOMBSTONE_OF(key, generation))
#define IS_AMONG(generation, set)     ((set) & BIT(generation))
#ifdef CONDITIONAL
#define TOMBSTONES  3
#define TOMBSTONE_OF(key, generation) ((generation) - 1)
#define GENERATION_OF(tombstone)      ((tombstone) + 1)
#else
#define TOMBSTONES  KEYS
#define TOMBSTONE_OF(key, generation) (key)
#define GENERATION_OF(tombstone)      1
#endif
#endif

typedef Row {
    bool there;
    byte generation;
    byte references;            /* committed ones, by writer */
    bool queued;                /* for review; entries of one row count as one, the latest */
    byte delayed;               /* not due before these writers are done */
    byte locked_by = NOBODY;    /* for update, or inserted and not committed */
    byte referred_by;           /* locked for key share, by writers that are inserting references */
};
Row rows[KEYS];

typedef Tombstone {
    bool there;
    byte locked_by = NOBODY;    /* a claim that has not committed */
    byte admitted;              /* locked for key share, by writers that are inserting rows */
    byte worker = NOBODY;       /* who was given it */
    bool settled;               /* wait_for is known: */
    byte wait_for;              /* writers whose transactions must end first */
};
Tombstone tombstones[TOMBSTONES];

bool slot[2], hold[2];          /* of each writer's upload */
bool has_xid[2];                /* its transaction has written something */
byte gone_since[2];             /* gc.deleted_objects: generations leased or confirmed since its transaction began */
bool lease[PROCESSES];          /* a worker's, as its clock and the database's tell it */
byte objects = BIT(1);          /* the generations in the store */
byte generations = 1;           /* how many there were */
byte uploading = NOBODY;        /* with ONE_AT_A_TIME */
bool in_transaction[PROCESSES], killed[PROCESSES];

/* For the properties. */
bool acknowledged[2];           /* the writer was told that its upload, or copy, is safe */
bool orphaned;                  /* an upload ended before its row: nobody but the store knows the object */

#define IS_LEASED(t) (tombstones[t].worker != NOBODY && lease[tombstones[t].worker])
#ifdef VERSIONS
#define HAS_OBJECT(key) (rows[key].generation == 0 -> objects != 0 : (objects & BIT(rows[key].generation)) != 0)
#else
#define HAS_OBJECT(key) (objects != 0)
#endif
#define IS_LOST(w)   (acknowledged[w] && (!rows[KEY_OF(w)].there || !HAS_OBJECT(KEY_OF(w))))
#define CHECK        assert(!IS_LOST(0) && !IS_LOST(1))

/* Whether a claim, or a lease, is in the way of an upload, which asks for every generation; or of an insert,
 * which asks for its own: a deletion of another does not touch what this one wrote. */
#if TOMBSTONES == 1 || defined(NAMED_LATER)
#define SOMEBODY_DELETES (tombstones[0].locked_by != NOBODY || IS_LEASED(0))
#else
#define SOMEBODY_DELETES (tombstones[0].locked_by != NOBODY || IS_LEASED(0) \
                       || tombstones[1].locked_by != NOBODY || IS_LEASED(1) \
                       || tombstones[2].locked_by != NOBODY || IS_LEASED(2))
#endif
#ifdef COPIED
#define CLAIMING (tombstones[0].locked_by != NOBODY || tombstones[1].locked_by != NOBODY \
               || tombstones[2].locked_by != NOBODY)
#define LEASED   (IS_LEASED(0) || IS_LEASED(1) || IS_LEASED(2))
#else
#ifdef NAMED_LATER
#define IS_CLAIMING(t) (IS_OF(t, key, mine) && tombstones[t].locked_by != NOBODY)
#define HAS_LEASE(t)   (IS_OF(t, key, mine) && IS_LEASED(t))
#define CLAIMING (IS_CLAIMING(0) || IS_CLAIMING(1) || IS_CLAIMING(2) || IS_CLAIMING(3))
#define LEASED   (HAS_LEASE(0) || HAS_LEASE(1) || HAS_LEASE(2) || HAS_LEASE(3))
#else
#define CLAIMING (tombstones[TOMBSTONE_OF(key, mine)].locked_by != NOBODY)
#define LEASED   IS_LEASED(TOMBSTONE_OF(key, mine))
#endif
#endif

/* ---- The application ---- */

/* The slot's lock shows at once, the hold only after the commit. */
inline gc_begin_upload() {
    atomic { in_transaction[me] = true; slot[me] = true; printf("writer %d: gc.begin_upload: slot locked\n", me) }
    /* gc._await_deletion: a claim's lock, and then a lease, are waited for. */
    atomic { !SOMEBODY_DELETES; printf("writer %d: gc.begin_upload: nobody deletes it\n", me) }
    atomic { hold[me] = true; slot[me] = false; in_transaction[me] = false; printf("writer %d: gc.begin_upload: commit\n", me) }
}

/* Or what comes of itself after a while: a hold and a delay are over. */
inline gc_end_upload() {
    atomic { hold[me] = false; rows[key].delayed = rows[key].delayed & ~BIT(me) }
}

/* One request: a store shows an object whole or not at all. */
inline write_object() {
    atomic {
#ifdef IF_ABSENT
        if
        :: objects == BIT(1) -> mine = 1
        :: objects == BIT(2) -> mine = 2
        :: objects == BIT(3) -> mine = 3
        :: else ->
#endif
#ifdef CONDITIONAL
        generations++;
#endif
        mine = generations;
#ifdef VERSIONS
        objects = objects | BIT(mine);
#else
        objects = BIT(mine);
#endif
        wrote = true;
#ifdef IF_ABSENT
        fi;
#endif
        printf("writer %d: writes the object, or finds it; generation %d\n", me, mine)
    }
}

inline roll_back_insert() {
    printf("writer %d: the insert is refused\n", me);
    rows[key].locked_by = NOBODY; has_xid[me] = false; in_transaction[me] = false; gone_since[me] = 0;
#ifdef NAMED_LATER
    mine = AT_FIRST;
#endif
    tombstones_wait_no_more()
}

/* Transactions that a claim waits for have ended. */
inline tombstones_wait_no_more() {
    for (t : 0 .. TOMBSTONES - 1) {
        tombstones[t].wait_for = tombstones[t].wait_for & ~BIT(me);
        tombstones[t].admitted = tombstones[t].admitted & ~BIT(me)
    }
    t = 0
}

/* A claim that has a tombstone is waited for; a lease, or a deletion that was confirmed since this transaction
 * began, is an error; otherwise its lock keeps claims away. Being a later statement than the insert it sees the
 * tombstone of a row that went before. Goes to again if the row is refused. */
inline gc_admit() {
    atomic {
        !CLAIMING;
        if
#ifndef WITHOUT_REFUSAL
        :: LEASED -> roll_back_insert(); goto again
#endif
#ifndef WITHOUT_DELETED_OBJECTS
        :: IS_AMONG(mine, gone_since[me]) -> roll_back_insert(); goto again
#endif
        :: else -> skip
        fi;
        for (t : 0 .. TOMBSTONES - 1) {
            if
            :: tombstones[t].there && IS_OF(t, key, mine) ->
                tombstones[t].admitted = tombstones[t].admitted | BIT(me)
#ifdef COPIED
            :: tombstones[t].there && t != key -> tombstones[t].admitted = tombstones[t].admitted | BIT(me)
#endif
            :: else -> skip
            fi
        }
        t = 0;
        printf("writer %d: gc._admit: the insert is admitted\n", me)
    }
}

/* The last step of gc._admit, which shows with the commit. */
inline cancel_tombstones() {
    for (t : 0 .. TOMBSTONES - 1) {
        if
        :: tombstones[t].admitted & BIT(me) -> tombstones[t].there = false; tombstones[t].worker = NOBODY
        :: else -> skip
        fi
    }
    t = 0
}

/* A row with the key, and its trigger: gc._admit. */
inline insert_row() {
    atomic {
        in_transaction[me] = true; gone_since[me] = 0;
#ifdef COPIED
        /* The url is read from a row that this snapshot shows. */
        if
        :: rows[0].there -> skip
        :: else -> in_transaction[me] = false; goto given_up
        fi;
#endif
        printf("writer %d: begins the transaction of its insert\n", me)
    }
    /* The primary key: whoever deletes or inserts the row is waited for. */
    atomic {
        rows[key].locked_by == NOBODY;
        rows[key].locked_by = me; has_xid[me] = true;
        printf("writer %d: inserts the row\n", me)
    }
#ifdef NAMED_LATER
    /* Nothing is written where the row is there (on conflict do nothing). */
    if
    :: rows[key].there -> skip
    :: else -> gc_admit()
    fi;
#else
    gc_admit();
#endif
    /* The commit. A row of that key that is there already is updated (on conflict do update): if it
     * named another generation, a trigger leaves a tombstone for that. An own tombstone goes, one of any generation
     * if this row names none; one that rows may share is left to the claim that finds this row. */
    atomic {
#ifndef COPIED
        cancel_tombstones();
#endif
        if
#ifdef NAMED_LATER
        :: rows[key].there -> skip
#endif
#if defined(NEWER_WINS) && !defined(NAMED_LATER)
        :: rows[key].there && rows[key].generation > mine -> skip
#endif
        :: else ->
            if
            :: rows[key].there && TOMBSTONE_OF(key, rows[key].generation) != TOMBSTONE_OF(key, mine) ->
                tombstones[TOMBSTONE_OF(key, rows[key].generation)].there = true
            :: else -> skip
            fi;
            rows[key].generation = mine
        fi;
        if
        :: !rows[key].there ->
            rows[key].there = true; rows[key].queued = true;
#ifdef ROW_FIRST
            rows[key].delayed = BIT(me)
#endif
        :: else ->
#ifdef KEEP_ALIVE
            hold[me] = true
#else
            skip
#endif
        fi;
        rows[key].locked_by = NOBODY; has_xid[me] = false; in_transaction[me] = false; wrote = false; gone_since[me] = 0; mine = AT_FIRST;
        uploading = NOBODY;
        tombstones_wait_no_more();
        printf("writer %d: commits its row\n", me)
    }
}

/* The row is updated with the generation that was written; its trigger leaves a tombstone for the one that
 * it named. That of a row that named none is cancelled in the same transaction, as any that is the row's own. */
inline name_generation() {
    atomic {
        rows[key].locked_by == NOBODY;
        if
        :: !rows[key].there -> goto given_up
#ifdef NEWER_WINS
        :: rows[key].there && rows[key].generation > mine -> goto named
#endif
        :: else -> skip
        fi;
        in_transaction[me] = true; gone_since[me] = 0; rows[key].locked_by = me; has_xid[me] = true;
        printf("writer %d: updates the generation\n", me)
    }
    gc_admit();
    atomic {
        cancel_tombstones();
        if
        :: rows[key].generation != mine && rows[key].generation != 0 ->
            tombstones[TOMBSTONE_OF(key, rows[key].generation)].there = true
        :: else -> skip
        fi;
        rows[key].generation = mine;
        rows[key].locked_by = NOBODY; has_xid[me] = false; in_transaction[me] = false; wrote = false; gone_since[me] = 0;
        tombstones_wait_no_more();
        printf("writer %d: commits generation %d\n", me, mine)
    }
named:
    mine = AT_FIRST
}

/* A tag, or another row with a foreign key. */
inline insert_reference() {
    /* The foreign key waits for a review that has the row, then locks the row for key share, or is an error. */
    atomic {
        rows[key].locked_by == NOBODY || !IS_WORKER(rows[key].locked_by);
        if
        :: !rows[key].there -> printf("writer %d: the foreign key is refused\n", me); goto given_up
        :: else -> rows[key].referred_by = rows[key].referred_by | BIT(me); in_transaction[me] = true
        fi;
        printf("writer %d: inserts a reference\n", me)
    }
    atomic {
        rows[key].referred_by = rows[key].referred_by & ~BIT(me);
        rows[key].references = rows[key].references | BIT(me);
        in_transaction[me] = false; acknowledged[me] = true; wrote = false;
        printf("writer %d: commits its reference, and has uploaded\n", me);
        CHECK
    }
}

/* One statement, whose trigger queues the row. */
inline delete_reference() {
    atomic {
        acknowledged[me] = false;
        rows[key].references = rows[key].references & ~BIT(me); rows[key].queued = true;
        printf("writer %d: deletes its reference\n", me)
    }
}

proctype Writer(byte me) {
    byte key = KEY_OF(me), mine = AT_FIRST, t;
    bool wrote;
again:
    {
#ifdef ONE_AT_A_TIME
        atomic { uploading == NOBODY || uploading == me -> uploading = me };
#endif
#ifdef ANNOUNCED
        if
        :: !hold[me] -> gc_begin_upload()
        :: else -> skip
        fi;
#endif
#if defined(ANNOUNCED) || defined(OBJECT_FIRST)
        write_object();
#endif
        insert_row();
#ifdef ROW_FIRST
        write_object();
#endif
#ifdef NAMED_LATER
        name_generation();
#endif
        insert_reference();
given_up:
        gc_end_upload();
        if
        :: acknowledged[me] -> delete_reference()
        :: true -> skip
        fi
    } unless {
        /* Its transaction is rolled back, its hold ends when its time is over. */
        atomic {
            killed[me] -> printf("writer %d: is killed\n", me);
            killed[me] = false;
            if
            :: rows[key].locked_by == me -> rows[key].locked_by = NOBODY
            :: else -> skip
            fi;
            rows[key].referred_by = rows[key].referred_by & ~BIT(me);
            slot[me] = false; has_xid[me] = false; in_transaction[me] = false; gone_since[me] = 0;
            uploading = (uploading == me -> NOBODY : uploading);
            tombstones_wait_no_more()
        };
        gc_end_upload()
    };
    orphaned = orphaned || wrote
}

/* ---- The runner ---- */

/* gc.review: look, lock, look again, delete. */
inline gc_review() {
    /* Look: the entry is taken (for update skip locked). What is plainly kept leaves the queue. */
    atomic {
        if
        :: rows[0].queued && rows[0].delayed == 0 -> key = 0
#if KEYS > 1
        :: rows[1].queued && rows[1].delayed == 0 -> key = 1
        :: rows[2].queued && rows[2].delayed == 0 -> key = 2
#endif
        fi;
        rows[key].queued = false; taken = true; in_transaction[me] = true;
        if
        :: !rows[key].there || rows[key].references != 0 -> taken = false; in_transaction[me] = false; key = 0; goto end_idle
        :: else -> printf("worker %d: gc.review: look\n", me)
        fi
    }
#ifdef OBJECT_BEFORE_ROW
    delete_object();
#endif
    /* Lock: whoever inserts a reference has the row locked; then it is put off. */
    atomic {
        if
        :: rows[key].locked_by == NOBODY && rows[key].referred_by == 0 && rows[key].there ->
            rows[key].locked_by = me; printf("worker %d: gc.review: lock\n", me)
        :: else ->
            rows[key].queued = rows[key].there; taken = false; in_transaction[me] = false; key = 0; goto end_idle
        fi
    }
#ifndef WITHOUT_SECOND_LOOK
    /* Look again: with a new snapshot. What is held is put off. */
    atomic {
        if
        :: rows[key].references != 0 || hold[0] || hold[1] ->
            rows[key].queued = rows[key].queued || rows[key].references == 0;
            rows[key].locked_by = NOBODY; taken = false; in_transaction[me] = false; key = 0; goto end_idle
        :: else -> printf("worker %d: gc.review: look again\n", me)
        fi
    }
#endif
    /* The delete, the tombstone that its trigger writes, and the commit: nobody can see one without the other. */
    atomic {
        rows[key].there = false; rows[key].references = 0; rows[key].locked_by = NOBODY;
        taken = false; in_transaction[me] = false;
#ifndef OBJECT_BEFORE_ROW
        t = TOMBSTONE_OF(key, rows[key].generation);
        tombstones[t].there = true; tombstones[t].settled = false;
#endif
        rows[key].generation = 0; key = 0; t = 0;
        printf("worker %d: gc.review: deletes the row, leaves a tombstone\n", me);
        CHECK
    }
}

inline give_back() {
    tombstones[t].locked_by = NOBODY; tombstones[t].worker = NOBODY; in_transaction[me] = false; t = 0; goto end_idle
}

inline look_at_slots() {
    atomic {
        if
        :: slot[0] || slot[1] -> give_back()
        :: else -> skip
        fi
    }
}

inline look_at_holds() {
    atomic {
        if
        :: hold[0] || hold[1] -> give_back()
        :: else -> skip
        fi
    }
}

/* What can be claimed: nobody has it locked, nor under a lease that is valid; and, by the constraint
 * tombstones_one_deletion, nobody has another tombstone of the object. A worker has one at a time. */
#ifdef COPIED
#define IS_CLAIMED (IS_LEASED(0) || IS_LEASED(1) || IS_LEASED(2) || CLAIMING)
#define IS_SETTLED(t) tombstones[t].settled
#else
#define IS_CLAIMED false
#define IS_SETTLED(t) true      /* the key makes the url: nobody else can name the object */
#endif
#define IS_DUE(t) (tombstones[t].there && tombstones[t].locked_by == NOBODY && tombstones[t].admitted == 0 \
                   && tombstones[t].wait_for == 0 && !IS_LEASED(t) && !IS_CLAIMED && !lease[me])

/* gc._settle: whoever has a transaction id already may have inserted a row without seeing the tombstone;
 * whoever gets one later sees it. The first kind is waited for. */
inline gc_settle() {
    tombstones[t].settled = true;
#ifndef WITHOUT_SETTLE
    tombstones[t].wait_for = (has_xid[0] -> BIT(0) : 0) | (has_xid[1] -> BIT(1) : 0);
#endif
    printf("worker %d: gc.claim: settles tombstone %d\n", me, t)
}

/* gc._take locks what is due, and leaves what is locked; the lease shows with the commit. */
inline gc_claim() {
    atomic {
        if
        :: IS_DUE(0) -> t = 0
#if TOMBSTONES > 1
        :: IS_DUE(1) -> t = 1
        :: IS_DUE(2) -> t = 2
#endif
#if TOMBSTONES > 3
        :: IS_DUE(3) -> t = 3
#endif
        fi;
        if
        :: !IS_SETTLED(t) -> gc_settle(); t = 0; goto end_idle
        :: else -> tombstones[t].locked_by = me; in_transaction[me] = true
        fi;
        printf("worker %d: gc.claim: takes tombstone %d\n", me, t)
    }
    /* gc._return_uploads: what has not committed shows in its slot, what has in its hold; so first the slots,
     * then, in a later statement, the holds. */
#ifdef HOLDS_BEFORE_SLOTS
    look_at_holds();
    look_at_slots();
#else
    look_at_slots();
#ifndef WITHOUT_HOLDS
    look_at_holds();
#endif
#endif
    /* gc._drop_used: a live row has the object. */
#ifndef WITHOUT_DROP_USED
    atomic {
        for (key : 0 .. KEYS - 1) {
            if
            :: rows[key].there && (KEYS > 1 || IS_OF(t, key, rows[key].generation)) ->
                tombstones[t].there = false; tombstones[t].settled = false; key = 0; give_back()
            :: else -> skip
            fi
        }
        key = 0
    }
#endif
    /* The commit. */
    atomic {
        tombstones[t].locked_by = NOBODY; tombstones[t].worker = me; lease[me] = true; in_transaction[me] = false;
#ifndef WITHOUT_REMEMBERING
        /* gc._remember: nobody knows what a worker has done whose lease runs out without a word. */
        gone_since[0] = gone_since[0] | (in_transaction[0] -> BIT(GENERATION_OF(t)) : 0);
        gone_since[1] = gone_since[1] | (in_transaction[1] -> BIT(GENERATION_OF(t)) : 0);
#endif
        printf("worker %d: gc.claim: has tombstone %d under a lease\n", me, t)
    }
}

/* One request, by a worker that looks at its clock before; its time-out ends before the lease. */
inline delete_object() {
    atomic {
#ifdef CONDITIONAL
        objects = (GENERATION_OF(t) == 0 -> 0 : objects & ~BIT(GENERATION_OF(t)));
#else
        objects = 0;
#endif
        printf("worker %d: deletes the object\n", me);
        CHECK
    }
}

/* One transaction of one statement; gc._remember tells older transactions. */
inline gc_confirm() {
    atomic {
        if
#ifdef WITHOUT_LEASE_CHECK
        :: tombstones[t].there ->
#else
        :: tombstones[t].there && tombstones[t].worker == me && lease[me] ->
#endif
            tombstones[t].there = false; tombstones[t].worker = NOBODY;
            tombstones[t].settled = false;
            gone_since[0] = gone_since[0] | (in_transaction[0] -> BIT(GENERATION_OF(t)) : 0);
            gone_since[1] = gone_since[1] | (in_transaction[1] -> BIT(GENERATION_OF(t)) : 0);
            printf("worker %d: gc.confirm\n", me)
        :: else -> skip
        fi;
        lease[me] = false; t = 0
    }
}

/* A worker sleeps where it is idle, until something is due. */
proctype Worker(byte me) {
    byte key, t;
    bool taken;
    do
    :: {
        printf("worker %d: starts\n", me);
end_idle:
        do
        :: gc_review()
        :: gc_claim();
#ifndef LATE_DELETE
            if
            :: atomic { lease[me] -> delete_object() }
            :: atomic { !lease[me] -> t = 0; goto end_idle }
            fi;
#else
            delete_object();
#endif
            gc_confirm()
        od
    } unless {
        /* Its transaction is rolled back. A lease is committed, and stays until it is over. */
        atomic {
            killed[me] -> printf("worker %d: is killed\n", me);
            killed[me] = false;
            if
            :: taken -> rows[key].queued = true; taken = false
            :: else -> skip
            fi;
            for (key : 0 .. KEYS - 1) {
                if
                :: rows[key].locked_by == me -> rows[key].locked_by = NOBODY
                :: else -> skip
                fi
            }
            for (t : 0 .. TOMBSTONES - 1) {
                if
                :: tombstones[t].locked_by == me -> tombstones[t].locked_by = NOBODY
                :: else -> skip
                fi
            }
            t = 0;
            key = 0;
            in_transaction[me] = false
        }
    }
    od
}

/* ---- The world ---- */

inline end_lease(worker_) {
    lease[worker_] = false;
    for (t : 0 .. TOMBSTONES - 1) {
        if
        :: tombstones[t].worker == worker_ -> tombstones[t].worker = NOBODY
        :: else -> skip
        fi
    }
    t = 0;
    printf("the lease of worker %d is over\n", worker_)
}

/* A lease may end at any moment. One that is over counts as none, wherever it is asked for. */
active proctype clock() {
    byte t;
end_clock:
    do
    :: atomic { lease[2] -> end_lease(2) }
    :: atomic { lease[3] -> end_lease(3) }
#ifdef HOLD_ENDS
    :: atomic { hold[0] -> hold[0] = false; printf("the hold of writer 0 is over\n") }
    :: atomic { hold[1] -> hold[1] = false; printf("the hold of writer 1 is over\n") }
#endif
    od
}

/* One process, or the server with all transactions, at any moment or never. */
active proctype crash() {
    if
    :: killed[0] = true
    :: killed[1] = true
    :: killed[2] = true
    :: killed[3] = true
    :: atomic {
        killed[0] = in_transaction[0]; killed[1] = in_transaction[1];
        killed[2] = in_transaction[2]; killed[3] = in_transaction[3]
    }
    :: skip
    fi
}

/* Nothing can happen any more. Every row has its object, and nothing dead is left: no row that nothing refers
 * to, no tombstone, no object without a row, but for one that only its failed upload knew. */
active proctype quiet() {
    byte k, t;
    atomic {
        timeout -> printf("all is quiet\n");
        for (k : 0 .. KEYS - 1) {
            assert(!rows[k].there || HAS_OBJECT(k));
            assert(!rows[k].there || rows[k].references != 0)
        }
        for (t : 0 .. TOMBSTONES - 1) {
            assert(!tombstones[t].there)
        }
#ifndef LOSS_ONLY
#ifdef COPIED
        assert(objects == 0 || orphaned || rows[0].there || rows[1].there || rows[2].there)
#else
        assert(objects == 0 || orphaned || rows[0].there)
#endif
#ifdef VERSIONS
        ;
        assert(orphaned || objects == 0 || objects == BIT(rows[0].generation))
#endif
#endif
    }
}

init {
    atomic {
        rows[0].there = true; rows[0].generation = 1; rows[0].queued = true;
        run Writer(0); run Writer(1); run Worker(2); run Worker(3)
    }
}
