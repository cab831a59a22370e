//! Attributes of a node, with references to attributes of a function call resolved.

use std::collections::HashMap;

use crate::proto::{AttributeProto, GraphProto, NodeProto, TensorProto, attribute_type};

/// The attributes of a node by name.
#[derive(Clone, Default)]
pub(crate) struct Attributes<'m> {
    by_name: HashMap<&'m str, &'m AttributeProto>,
}

impl<'m> Attributes<'m> {
    /// Collects the attributes of `node`; inside a function, `call` contains the values of referenced attributes.
    pub(crate) fn of(node: &'m NodeProto, call: Option<&Attributes<'m>>) -> Self {
        let mut by_name = HashMap::new();
        for attribute in &node.attribute {
            let found = match attribute.ref_attr_name.as_str() {
                "" => Some(attribute),
                // A reference to an attribute that the call omits counts as missing.
                name => call.and_then(|call| call.by_name.get(name).copied()),
            };
            if let Some(found) = found {
                by_name.insert(attribute.name.as_str(), found);
            }
        }
        Attributes { by_name }
    }

    /// Adds the defaults of attributes that the node does not have.
    pub(crate) fn add_defaults(&mut self, defaults: &'m [AttributeProto]) {
        for default in defaults {
            self.by_name.entry(&default.name).or_insert(default);
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    fn typed(&self, name: &str, kind: i32, kind_name: &str) -> Result<Option<&'m AttributeProto>, String> {
        match self.by_name.get(name) {
            None => Ok(None),
            // The first versions of the format did not write the type.
            Some(a) if a.r#type == kind || a.r#type == 0 => Ok(Some(a)),
            Some(_) => Err(format!("attribute `{name}` is not {kind_name}")),
        }
    }

    pub(crate) fn int(&self, name: &str) -> Result<Option<i64>, String> {
        Ok(self.typed(name, attribute_type::INT, "an integer")?.map(|a| a.i))
    }

    pub(crate) fn float(&self, name: &str) -> Result<Option<f32>, String> {
        Ok(self.typed(name, attribute_type::FLOAT, "a number")?.map(|a| a.f))
    }

    pub(crate) fn ints(&self, name: &str) -> Result<Option<&'m [i64]>, String> {
        Ok(self
            .typed(name, attribute_type::INTS, "a list of integers")?
            .map(|a| a.ints.as_slice()))
    }

    pub(crate) fn floats(&self, name: &str) -> Result<Option<&'m [f32]>, String> {
        Ok(self
            .typed(name, attribute_type::FLOATS, "a list of numbers")?
            .map(|a| a.floats.as_slice()))
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<&'m str>, String> {
        match self.typed(name, attribute_type::STRING, "a string")? {
            None => Ok(None),
            Some(a) => match std::str::from_utf8(&a.s) {
                Ok(s) => Ok(Some(s)),
                Err(_) => Err(format!("attribute `{name}` is not UTF-8")),
            },
        }
    }

    pub(crate) fn strings(&self, name: &str) -> Result<Option<Vec<&'m str>>, String> {
        match self.typed(name, attribute_type::STRINGS, "a list of strings")? {
            None => Ok(None),
            Some(a) => {
                let strings: Result<Vec<_>, _> = a.strings.iter().map(|s| std::str::from_utf8(s)).collect();
                strings
                    .map(Some)
                    .map_err(|_| format!("attribute `{name}` is not UTF-8"))
            }
        }
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<Option<&'m TensorProto>, String> {
        let attribute = self.typed(name, attribute_type::TENSOR, "a tensor")?;
        match attribute.map(|a| a.t.as_ref()) {
            Some(None) => Err(format!("attribute `{name}` has no tensor")),
            found => Ok(found.flatten()),
        }
    }

    pub(crate) fn graph(&self, name: &str) -> Result<Option<&'m GraphProto>, String> {
        let attribute = self.typed(name, attribute_type::GRAPH, "a graph")?;
        match attribute.map(|a| a.g.as_deref()) {
            Some(None) => Err(format!("attribute `{name}` has no graph")),
            found => Ok(found.flatten()),
        }
    }
}
