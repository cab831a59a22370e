//! Translation of statements.

use std::collections::HashSet;

use naga::{Block, Expression, Handle, Statement, SwitchCase, SwitchValue};

use super::body::Body;
use super::error::{Result, WriteError};

impl Body<'_> {
    pub(super) fn block(&mut self, block: &Block) -> Result<()> {
        block.iter().try_for_each(|statement| self.statement(statement))
    }

    /// Writes a block and its closing brace. The last line that was written must end with the opening brace.
    fn inner_block(&mut self, block: &Block) -> Result<()> {
        self.indent += 1;
        self.block(block)?;
        self.indent -= 1;
        Ok(())
    }

    fn statement(&mut self, statement: &Statement) -> Result<()> {
        match statement {
            Statement::Emit(range) => range.clone().try_for_each(|handle| self.emit(handle))?,
            Statement::Block(block) => {
                self.line("{");
                self.inner_block(block)?;
                self.line("}");
            }
            Statement::If {
                condition,
                accept,
                reject,
            } => self.condition(*condition, accept, reject)?,
            Statement::Switch { selector, cases } => self.switch(*selector, cases)?,
            Statement::Loop {
                body,
                continuing,
                break_if,
            } => self.repeat(body, continuing, *break_if)?,
            Statement::Break => self.line("break;"),
            Statement::Continue => match self.loops.last() {
                Some(Some(label)) => {
                    let jump = format!("goto {label};");
                    self.line(&jump);
                }
                _ => self.line("continue;"),
            },
            Statement::Return { value: None } => self.line("return;"),
            Statement::Return { value: Some(value) } => {
                let value = self.value(*value)?;
                self.line(&format!("return {value};"));
            }
            Statement::ControlBarrier(barrier) => self.control_barrier(*barrier),
            Statement::MemoryBarrier(barrier) => self.memory_barrier(*barrier),
            Statement::Store { pointer, value } => self.store(*pointer, *value)?,
            Statement::Atomic {
                pointer,
                fun,
                value,
                result,
            } => self.atomic(*pointer, *fun, *value, *result)?,
            Statement::WorkGroupUniformLoad { pointer, result } => self.uniform_load(*pointer, *result)?,
            Statement::Call {
                function,
                arguments,
                result,
            } => {
                let call = self.call(*function, arguments)?;
                match result {
                    Some(result) => self.define(*result, &call)?,
                    None => self.line(&format!("{call};")),
                }
            }
            Statement::SubgroupBallot { result, predicate } => self.ballot(*result, *predicate)?,
            Statement::SubgroupGather { mode, argument, result } => self.gather(*mode, *argument, *result)?,
            Statement::SubgroupCollectiveOperation {
                op,
                collective_op,
                argument,
                result,
            } => self.collective(*op, *collective_op, *argument, *result)?,
            Statement::CooperativeStore { target, data } => self.store_matrix(*target, data)?,
            other => return Err(WriteError::unsupported(format!("the statement {other:?}"))),
        }
        Ok(())
    }

    fn condition(&mut self, condition: Handle<Expression>, accept: &Block, reject: &Block) -> Result<()> {
        let condition = self.value(condition)?;
        if accept.is_empty() && !reject.is_empty() {
            self.line(&format!("if (!{condition}) {{"));
            self.inner_block(reject)?;
        } else {
            self.line(&format!("if ({condition}) {{"));
            self.inner_block(accept)?;
            if !reject.is_empty() {
                self.line("} else {");
                self.inner_block(reject)?;
            }
        }
        self.line("}");
        Ok(())
    }

    fn switch(&mut self, selector: Handle<Expression>, cases: &[SwitchCase]) -> Result<()> {
        let selector = self.value(selector)?;
        self.line(&format!("switch ({selector}) {{"));
        for case in cases {
            let label = match case.value {
                SwitchValue::I32(value) => format!("case {}:", self.cx.literal(naga::Literal::I32(value))?),
                SwitchValue::U32(value) => format!("case {value}u:"),
                SwitchValue::Default => "default:".to_owned(),
            };
            self.line(&format!("{label} {{"));
            self.inner_block(&case.body)?;
            self.line("}");
            if !case.fall_through && !case.body.last().is_some_and(ends) {
                self.line("break;");
            }
        }
        self.line("}");
        Ok(())
    }

    /// Writes a loop. Its continuing block follows the body, and `continue` jumps to this block.
    fn repeat(&mut self, body: &Block, continuing: &Block, break_if: Option<Handle<Expression>>) -> Result<()> {
        let jumps = (!continuing.is_empty() || break_if.is_some()) && body.iter().any(continues);
        let before = self.declared.clone();
        if jumps {
            self.declare_values(body)?;
        }
        self.line("for (;;) {");
        self.indent += 1;
        let label = jumps.then(|| self.names.unique("next"));
        self.loops.push(label.clone());
        if let Some(label) = label {
            // Jumps must not cross declarations, so the body has its own scope.
            self.line("{");
            self.inner_block(body)?;
            self.line("}");
            self.line(&format!("{label}:;"));
        } else {
            self.block(body)?;
        }
        self.loops.pop();
        self.block(continuing)?;
        if let Some(condition) = break_if {
            let condition = self.value(condition)?;
            self.line(&format!("if ({condition}) {{"));
            self.line("    break;");
            self.line("}");
        }
        self.indent -= 1;
        self.line("}");
        self.declared = before;
        Ok(())
    }

    /// Declares the values that a loop body computes, because the continuing block may use them.
    fn declare_values(&mut self, body: &Block) -> Result<()> {
        let mut computed = HashSet::new();
        for statement in body.iter() {
            match statement {
                Statement::Emit(range) => computed.extend(range.clone()),
                Statement::Call {
                    result: Some(result), ..
                }
                | Statement::Atomic {
                    result: Some(result), ..
                }
                | Statement::WorkGroupUniformLoad { result, .. }
                | Statement::SubgroupBallot { result, .. }
                | Statement::SubgroupGather { result, .. }
                | Statement::SubgroupCollectiveOperation { result, .. } => {
                    computed.insert(*result);
                }
                _ => {}
            }
        }
        let mut computed: Vec<_> = computed.into_iter().filter(|handle| self.gets_name(*handle)).collect();
        computed.sort_by_key(|handle| handle.index());
        for handle in computed {
            let ty = self.type_of(handle)?;
            let name = self.name_of(handle);
            self.line(&format!("{ty} {name};"));
            self.values.insert(handle, name);
            self.declared.insert(handle);
        }
        Ok(())
    }

    fn store(&mut self, pointer: Handle<Expression>, value: Handle<Expression>) -> Result<()> {
        if self.inner(pointer).is_atomic_pointer(&self.cx.module.types) {
            return self.atomic_store(pointer, value);
        }
        let (place, value) = (self.place(pointer)?, self.value(value)?);
        self.line(&format!("{place} = {value};"));
        Ok(())
    }
}

/// Returns `true` if control does not continue after a statement.
fn ends(statement: &Statement) -> bool {
    matches!(
        statement,
        Statement::Break | Statement::Continue | Statement::Return { .. }
    )
}

/// Returns `true` if a statement may continue with the next iteration of its loop.
fn continues(statement: &Statement) -> bool {
    match statement {
        Statement::Continue => true,
        Statement::Block(block) => block.iter().any(continues),
        Statement::If { accept, reject, .. } => accept.iter().chain(reject.iter()).any(continues),
        Statement::Switch { cases, .. } => cases.iter().any(|case| case.body.iter().any(continues)),
        // A `continue` in a nested loop belongs to the nested loop.
        _ => false,
    }
}
