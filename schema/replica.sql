-- Named queries to the replica: a name, a line on what it is for, the statement.

-- whoami --
-- Whose login this is.
SELECT organization_id::text, organization, member, kind, machine FROM syncd.whoami()

-- hello --
-- Make a device known, and learn where the replica stands with it.
SELECT * FROM syncd.hello(%s::uuid, %s::uuid, %s, %s)

-- introduce --
-- Make a lost machine's device known again.
SELECT syncd.introduce(%s::uuid, %s::uuid, %s)::text

-- keys --
-- The public keys of the organization's devices.
SELECT device_id::text, public_key FROM syncd.devices WHERE organization_id = %s::uuid

-- push --
-- Entries of one device that follow each other, column by column, as binary arrays.
SELECT device_seq, verdict, cloud_seq, batch::text, effective_hlc, reason
FROM syncd.push(%s::uuid, %s::uuid, %s, %b, %s::uuid[], %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,
  %s, %s, %s, %s, %s::uuid[])

-- pull --
-- The next whole batches after a cursor.
SELECT cloud_seq, batch::text, entry_id::text, device_id::text, device_seq, entity, entity_id, op,
  bases, hlc, actor, at, key_id, meta, hash, chain, signature, effective_hlc, refused, body,
  purged_by::text
FROM syncd.pull(%s::uuid, %s::uuid, %s, %s::uuid, %s, %s, %s)

-- announce --
-- Tell the other devices that there is news.
SELECT syncd.announce(%s::uuid)

-- report --
-- How far this device has come.
SELECT syncd.report(%s::uuid, %s::uuid, %s, %s)::text

-- report_skew --
-- The same, and how far its clock is off.
SELECT syncd.report_skew(%s::uuid, %s::uuid, %s, %s, %s)::text

-- presence --
-- Signs of life of this device's agents; those of the others come back.
SELECT device_id::text, agent_id, task_id, agent_type, session_id, age_ms
FROM syncd.presence(%s::uuid, %s::uuid, %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[])

-- entry --
-- One entry as the log has it.
SELECT cloud_seq, batch::text, entry_id::text, device_id::text, device_seq, entity, entity_id, op,
  bases, hlc, actor, at, key_id, meta, hash, chain, signature, effective_hlc, refused, body,
  purged_by::text
FROM syncd.log WHERE organization_id = %s::uuid AND entry_id = %s::uuid AND refused IS NULL

-- common --
-- The greatest of some cursors that the replica agrees with.
SELECT syncd.common(%s::uuid, %s::bigint[], %s::text[]::uuid[])

-- chains --
-- A device's chain values at some of its numbers.
SELECT device_seq, chain FROM syncd.chains(%s::uuid, %s::uuid, %s::bigint[])

-- signed_after --
-- The next signatures of a device after some number, and what they sign.
SELECT chain, signature FROM syncd.log
WHERE organization_id = %s::uuid AND device_id = %s::uuid AND device_seq > %s
  AND signature IS NOT NULL
ORDER BY device_seq LIMIT 100

-- digests --
-- A digest for each thousand entries of each device.
SELECT device_id::text, thousand, entries, digest FROM syncd.digests(%s::uuid)

-- thousand --
-- The entries behind one digest.
SELECT device_seq, entry_id::text, chain, cloud_seq FROM syncd.thousand(%s::uuid, %s::uuid, %s)

-- pullers --
-- Each device, the name of its machine, whether it has pulled so far.
SELECT d.device_id::text, l.name, d.pulled >= %s
FROM syncd.devices d JOIN syncd.logins l USING (organization_id, login)
WHERE d.organization_id = %s::uuid ORDER BY l.name, d.device_id

-- machines --
-- An organization's machines, or one member's, with the devices that used them, and which of these
-- say that they continue which.
SELECT l.organization_id::text, l.login, l.name, m.name, m.kind, l.revoked_at IS NOT NULL,
  l.reason, max(d.last_seen), coalesce(array_agg(d.device_id::text) FILTER (
    WHERE d.device_id IS NOT NULL), '{}'),
  coalesce(jsonb_object_agg(d.device_id::text, f.meta::jsonb #>> '{continues,device_id}') FILTER (
    WHERE f.meta::jsonb ? 'continues'), '{}')
FROM syncd.logins l
JOIN syncd.members m USING (organization_id, member_id)
LEFT JOIN syncd.devices d USING (organization_id, login)
LEFT JOIN syncd.log f ON f.organization_id = d.organization_id AND f.device_id = d.device_id
  AND f.device_seq = 1 AND f.refused IS NULL
WHERE l.organization_id = %s::uuid AND (%s::text IS NULL OR m.name = %s::text)
GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY m.name, l.name, l.login

-- add_own_machine --
-- A login for a member's next machine.
SELECT syncd.my_device_add(%s::uuid, %s, %s, %s)::text

-- rename_own_machine --
-- Another name for a member's machine.
SELECT syncd.my_device_rename(%s::uuid, %s, %s)::text

-- revoke_own_machine --
-- Refuse a member's machine from now on.
SELECT syncd.my_device_revoke(%s::uuid, %s, %s)::text

-- end_own_sessions --
-- End what a revoked machine still has open.
SELECT syncd.my_sessions_end(%s::uuid, %s)

-- organizations --
-- All organizations of the replica.
SELECT o.organization_id::text, o.name, o.created_at, o.cloud_seq, o.recovery_open,
  (SELECT count(*) FROM syncd.members m
   WHERE m.organization_id = o.organization_id AND m.removed_at IS NULL)
FROM syncd.organizations o ORDER BY o.name

-- create_organization --
-- A new organization.
SELECT syncd.create_organization(%s)::text

-- members --
-- The members of an organization.
SELECT m.member_id::text, m.name, m.kind, m.added_at, m.removed_at,
  (SELECT count(*) FROM syncd.logins l WHERE l.organization_id = m.organization_id
   AND l.member_id = m.member_id AND l.revoked_at IS NULL)
FROM syncd.members m WHERE m.organization_id = %s::uuid ORDER BY m.name, m.added_at

-- add_member --
-- A new member with a first machine.
SELECT syncd.add_member(%s::uuid, %s, %s, %s, %s, %s)::text

-- add_machine --
-- A login for a member's machine.
SELECT syncd.add_login(%s::uuid, %s::uuid, %s, %s, %s)::text

-- reset_machine --
-- A new password for a machine.
SELECT syncd.reset_login(%s::uuid, %s, %s)::text

-- revoke_machine --
-- Refuse a machine from now on.
SELECT syncd.revoke_login(%s::uuid, %s, %s)::text

-- remove_member --
-- Refuse all machines of a member from now on; which they were.
SELECT syncd.remove_member(%s::uuid, %s::uuid, %s)

-- end_sessions --
-- End what revoked machines still have open.
SELECT syncd.end_sessions(%s::text[])

-- sync_roles --
-- Make roles from the tables; which logins need a new password.
SELECT syncd.sync_roles()

-- expect_restore --
-- pg_restore gives functions to syncd_admin before it restores the right to have them there.
ALTER DEFAULT PRIVILEGES GRANT CREATE ON SCHEMAS TO syncd_admin

-- restored --
-- The end of that.
ALTER DEFAULT PRIVILEGES REVOKE CREATE ON SCHEMAS FROM syncd_admin

-- set_recovery --
-- Let devices relay what others have lost, or no longer.
SELECT syncd.set_recovery(%s::uuid, %s)::text

-- installed --
-- Whether there is a replica in this database.
SELECT to_regclass('syncd.schema_migrations') IS NOT NULL

-- replica_version --
-- The newest migration that was applied.
SELECT coalesce(max(version), 0) FROM syncd.schema_migrations

-- one_installer --
-- Several administrators may install at once: the others wait.
SELECT pg_advisory_xact_lock(7311684127)::text

-- as_owner --
-- What a migration makes belongs to the owner, whoever runs it.
SET LOCAL ROLE syncd_owner

-- as_oneself --
-- The end of that.
RESET ROLE

-- record_migration --
-- A step, in the same transaction as the step itself.
INSERT INTO syncd.schema_migrations (version, name) VALUES (%s, %s)

-- admin_views --
-- The admin queries that this replica has, and what each is for.
SELECT substr(c.relname, 7), coalesce(obj_description(c.oid, 'pg_class'), '')
FROM pg_catalog.pg_class c
WHERE c.relnamespace = to_regnamespace('syncd') AND c.relkind = 'v' AND c.relname ~ '^admin_'
ORDER BY 1

-- admin_columns --
-- The columns of one.
SELECT attname FROM pg_catalog.pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 ORDER BY attnum

-- admin_organization --
-- An organization that this login may see, by name or id.
SELECT organization_id::text FROM syncd.organizations
WHERE name = %s::text OR organization_id::text = %s::text

-- admin_rows --
-- What one finds.
SELECT * FROM {view} WHERE {conditions} ORDER BY {order} LIMIT {limit}

-- admin_cost_by --
-- What the work has cost, added up.
SELECT organization, {by}, least(sum(tokens), 9000000000000000000)::bigint AS tokens,
  sum(seconds) AS seconds, sum(checkpoints)::bigint AS checkpoints, max(iterations) AS iterations,
  min(first_at) AS first_at, max(last_at) AS last_at
FROM {view} WHERE {conditions}
GROUP BY organization_id, organization, {by} ORDER BY {order} LIMIT {limit}

-- has_citus --
-- Whether this database can distribute tables.
SELECT to_regproc('create_distributed_table') IS NOT NULL

-- let_owner_log_in --
-- Without a password: the workers' pg_hba.conf lets it in from the coordinator, and nobody else.
ALTER ROLE syncd_owner LOGIN

-- undistributed --
-- The tables that Citus does not have yet. The others go where the organizations are.
SELECT c.relname FROM pg_catalog.pg_class c
WHERE c.relnamespace = 'syncd'::regnamespace AND c.relkind IN ('r', 'p')
  AND NOT EXISTS (SELECT FROM pg_dist_partition p WHERE p.logicalrelid = c.oid)
ORDER BY c.relname <> 'organizations', c.relname

-- policy_for_citus --
-- The rule for members without the sub-select.
SELECT syncd.policy_for_citus(%s)::text

-- distribute --
-- A table by organization, beside another one.
SELECT create_distributed_table(%s::regclass, 'organization_id', colocate_with => %s)::text

-- distribute_everywhere --
-- A small table that every worker has.
SELECT create_reference_table(%s::regclass)::text

-- fleet_known --
-- Whether this replica has the views that the fleet is read from.
SELECT to_regclass('syncd.admin_fleet') IS NOT NULL

-- fleet_machines --
-- The machines of an organization, those that want attention first.
SELECT member, machine, state, version, last_seen, behind, pending, entries
FROM syncd.admin_fleet WHERE organization_id = %s
ORDER BY array_position(ARRAY['lost', 'silent', 'behind', 'sending', 'current'], state)
  NULLS LAST, member, machine LIMIT 200

-- fleet_tasks --
-- The tasks that were worked on last, anywhere.
SELECT task_id, title, state, phase, agent_id, forks, conflicts, waits_for, checkpoints, tokens,
  budget, last_at
FROM syncd.admin_tasks WHERE organization_id = %s ORDER BY last_at DESC NULLS LAST, task_id LIMIT 40

-- fleet_silent --
-- Agents that should have given a sign of life.
SELECT agent_id, task_id, machine, member, seen_at, state
FROM syncd.admin_stale WHERE organization_id = %s ORDER BY seen_at LIMIT 100

-- fleet_days --
-- What was spent in the last 30 days, by day.
SELECT day::text, least(sum(tokens), 9000000000000000000)::bigint FROM syncd.admin_cost
WHERE organization_id = %s AND day > current_date - 30 GROUP BY day

-- fleet_agents --
-- What was spent in the last 30 days, by agent.
SELECT agent_id, sum(checkpoints)::bigint, least(sum(tokens), 9000000000000000000)::bigint
FROM syncd.admin_cost
WHERE organization_id = %s AND day > current_date - 30 GROUP BY agent_id ORDER BY 3 DESC LIMIT 200
