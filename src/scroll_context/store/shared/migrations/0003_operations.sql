-- Taking over a store from a folder (push.py), and what doctor.py asks.

-- Appends rows that continue the history as they are. Only for a store to which no host has appended yet, since the rows
-- belong to no lease; each link of the chain is computed here and must be the one that the row has. Returns the newest seq;
-- or the generation of a deleted payload, when nothing was written and the bodies must be put again.
CREATE FUNCTION adopt(
    p_store integer, p_first bigint, p_generation bigint, p_sessions bytea[], p_agents bytea[], p_tasks bytea[],
    p_sources bytea[], p_payloads text[], p_nonces bytea[], p_bodies bytea[], p_leaves bytea[], p_chains bytea[],
    OUT o_last bigint, OUT o_generation bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
DECLARE
    h scroll.head; r record;
    v_secret bytea; v_chain bytea;
    v_last bigint := p_first + cardinality(p_bodies) - 1;
    v_size bigint := scroll.partition_events();
    v_bytes bigint := 0;
BEGIN
    PERFORM scroll.require(p_store, 'erase');
    PERFORM scroll.lock_store(p_store);
    SELECT * INTO h FROM scroll.head WHERE store_id = p_store;
    IF h.last_seq = v_last AND h.chain = p_chains[cardinality(p_chains)] THEN  -- the answer to this call was lost
        o_last := v_last;
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM scroll.writer w WHERE w.store_id = p_store) THEN
        RAISE EXCEPTION 'hosts have appended to this store already' USING ERRCODE = 'SC005';
    END IF;
    IF h.last_seq <> p_first - 1 THEN
        RAISE EXCEPTION 'the store ends at seq %, and these events begin at seq %', h.last_seq, p_first
        USING ERRCODE = 'SC005';
    END IF;
    SELECT max(t.gen) INTO o_generation FROM scroll.tombstone t WHERE t.store_id = p_store AND t.gen > p_generation
    AND t.digest IN (SELECT unnest(string_to_array(d.digests, ',')) FROM unnest(p_payloads) AS d(digests));
    IF o_generation IS NOT NULL THEN
        RETURN;
    END IF;
    v_chain := h.chain;
    FOR r IN SELECT * FROM unnest(p_nonces, p_bodies, p_leaves, p_chains) WITH ORDINALITY
                           AS u(nonce, body, leaf, chain, n) LOOP
        v_chain := sha256(v_chain || int8send(p_first + r.n - 1) || coalesce(r.leaf, sha256(r.nonce || r.body)));
        IF v_chain IS DISTINCT FROM r.chain THEN
            RAISE EXCEPTION 'seq % does not continue the chain', p_first + r.n - 1 USING ERRCODE = 'SC005';
        END IF;
        v_bytes := v_bytes + length(r.body) + 160;
    END LOOP;
    PERFORM scroll.ensure_partition(n) FROM generate_series(h.last_seq / v_size, (v_last + v_size / 2) / v_size) n;
    INSERT INTO scroll.event (store_id, seq, session_id, agent_id, task_id, payloads, nonce, body, leaf, chain)
    SELECT p_store, p_first + u.n - 1, u.session_id, u.agent_id, u.task_id, string_to_array(u.digests, ','), u.nonce,
           u.body, u.leaf, u.chain
    FROM unnest(p_sessions, p_agents, p_tasks, p_payloads, p_nonces, p_bodies, p_leaves, p_chains) WITH ORDINALITY
         AS u(session_id, agent_id, task_id, digests, nonce, body, leaf, chain, n);
    SELECT s.secret INTO v_secret FROM scroll.store s WHERE s.store_id = p_store;
    INSERT INTO scroll.source SELECT p_store, sha256(v_secret || u.source), p_first + u.n - 1
    FROM unnest(p_sources) WITH ORDINALITY AS u(source, n) WHERE u.source IS NOT NULL;
    UPDATE scroll.head SET last_seq = v_last, chain = v_chain, bytes = h.bytes + v_bytes WHERE store_id = p_store;
    o_last := v_last;
END $$;

-- What this login may do with a store.
CREATE FUNCTION rights(p_store integer, OUT can_append boolean, OUT can_erase boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
    SELECT coalesce(bool_or(m.can_append), false), coalesce(bool_or(m.can_erase), false)
    FROM scroll.member m JOIN pg_roles r ON r.rolname = m.role
    WHERE m.store_id = p_store AND pg_has_role(session_user, r.oid, 'MEMBER')
$$;
